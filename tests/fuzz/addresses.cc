// Addresses of transports (transport/address.h) from any bytes: refused by an Error, or the same
// when they are written and read again.
#include "innetwork/udp/address.h"
#include "input.h"
#include "transport/ucx/ucx_address.h"

using namespace omnihvd;

static std::string again(const std::string& bytes, bool udp) {
  return udp ? encode_address(decode_udp_address(bytes)) : encode_address(decode_address(bytes));
}

FUZZ(in) {
  const bool udp = in.flag();
  const uint8_t how = in.number<uint8_t>() % 3;
  std::string given;
  if (how == 0) {
    given = in.text();
  } else if (how == 1) {  // undamaged, with any body
    given = wrap_address(udp ? "omnihvd udp 1" : "omnihvd ucx 4", in.text());
  } else if (udp) {
    UdpAddress address{{{"host", in.number<uint32_t>(), in.number<uint64_t>()}, "name", "net"},
                       in.number<uint16_t>(),
                       std::string(in.between(0, 40), 'k'),
                       in.flag(),
                       {}};
    while (in.left() >= 12)
      address.places.push_back({in.number<uint32_t>(), in.number<uint32_t>(),
                                std::max(in.number<uint32_t>(), uint32_t{576})});
    given = encode_address(address);
    const UdpAddress read = decode_udp_address(given);
    MUST(read.process.pid == address.process.pid && read.process.start == address.process.start);
    MUST(read.port == address.port && read.key == address.key);
    MUST(read.has_secret == address.has_secret && read.places.size() == address.places.size());
    MUST(again(given, udp) == given);
  } else {
    const UcxAddress address{{{"host", in.number<uint32_t>(), in.number<uint64_t>()}, "n", "net"},
                             in.number<uint32_t>(),
                             "1.22",
                             "worker",
                             in.text()};
    given = encode_address(address);
    const UcxAddress read = decode_address(given);
    MUST(read.user == address.user && read.worker_wide == address.worker_wide);
    MUST(again(given, udp) == given);
  }
  std::string once;
  if (fuzz::accepted([&] { once = again(given, udp); })) MUST(again(once, udp) == once);
}
