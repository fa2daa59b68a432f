// Adds the parts of libomnihvd_innetwork to libomnihvd.
#include "base/plugin.h"
#include "innetwork/fpisa.h"
#include "innetwork/inline_sum.h"
#include "innetwork/integers.h"
#include "innetwork/udp/transport.h"
#include "protocol/arithmetic.h"
#include "transport/registry.h"

namespace omnihvd {
namespace {

void register_all() {
  static constexpr ArithmeticOps kArithmetic = {
      fpisa::ops, [](const void* block, size_t n) { return integer_ops().exponent(block, n); },
      integers_of_block,
      [](const uint8_t* codes, size_t n, void* to) { integer_ops().from_codes(codes, n, to); },
      block_of_integers};
  register_arithmetic(kArithmetic);
  register_algorithm("inline", &InlineSum::create);
  register_transport("udp", [](const TransportOptions& o) { return make_udp_transport(o); });
}

}  // namespace
}  // namespace omnihvd

OMNIHVD_PLUGIN(omnihvd::register_all)
