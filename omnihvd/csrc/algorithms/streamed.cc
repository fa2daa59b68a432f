#include "algorithms/streamed.h"

#include <cstring>

namespace omnihvd {

std::unique_ptr<Algorithm> make_streamed(Exchange& exchange, const Settings& agreed,
                                         const std::vector<std::string>&) {
  return std::make_unique<Streamed>(process_engine(exchange)->join(exchange, agreed));
}

SumMade Streamed::run(const Call& call, Library&) {
  const Way way = streamed_way(call.codec);
  if (!call.scatters())
    return {way, group_->allreduce(call.in, call.out, call.count, call.dtype, call.codec)};
  const size_t element = size_of(call.dtype), share = call.elements_of(group_->rank()) * element;
  const auto* const from = static_cast<const uint8_t*>(call.in);
  auto* const to = static_cast<uint8_t*>(call.out);
  const bool apart = to + share <= from || from + call.bytes() <= to;
  uint8_t* const sums =
      apart || to == from + call.begin_of(group_->rank()) * element ? to : scratch_.of(share);
  const uint64_t united =
      group_->reduce_scatter(call.in, sums, *call.shares, call.dtype, call.codec);
  if (sums != to && share > 0) std::memcpy(to, sums, share);
  return {way, united};
}

}  // namespace omnihvd
