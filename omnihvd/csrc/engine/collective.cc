#include "engine/collective.h"

namespace omnihvd {
namespace {

// Counts for collectives that are not the caller's sums.
Stats unseen;

}  // namespace

Collective::Collective(uint64_t sequence_number, const Shape& shape, uint32_t ranks,
                       uint32_t streams, Group::MakeTensor make, Group::Done done, bool counted)
    : sequence(sequence_number),
      layout(shape),
      begun(Clock::now()),
      make_tensor(std::move(make)),
      stats_(counted ? stats() : unseen),
      parts_(streams, [this, done = std::move(done)](const std::string* why, uint64_t united) {
        if (why) stats_.failures += !layout.shape().for_one();
        done(why, united);
      }) {
  const uint64_t bytes = shape.count * size_of(shape.dtype);
  stats_.calls += !shape.for_one();
  stats_.bytes_in += bytes;
  stats_.ring_bytes += ring_bytes(ranks, bytes, shape.for_one());
  stats_.blocks += shape.blocks();
}

void Collective::stream_done(const std::string* failure, uint64_t nonzero_blocks,
                             uint64_t result_blocks) {
  stats_.nonzero_blocks += nonzero_blocks;
  stats_.result_blocks += result_blocks;
  parts_.end(failure, result_blocks);
}

}  // namespace omnihvd
