#include "session/collective.h"

namespace omnihvd {

Collective::Collective(uint64_t sequence_number, const Shape& shape, uint32_t ranks,
                       uint32_t streams, Group::MakeTensor make, Group::Done done)
    : sequence(sequence_number),
      layout(shape),
      begun(Clock::now()),
      make_tensor(std::move(make)),
      streams_left_(streams),
      done_(std::move(done)) {
  const uint64_t bytes = shape.count * size_of(shape.dtype);
  stats().calls += 1;
  stats().bytes_in += bytes;
  stats().ring_bytes += ring_bytes(ranks, bytes);
  stats().blocks += shape.blocks();
}

void Collective::stream_done(const std::string* failure, uint64_t nonzero_blocks,
                             uint64_t result_blocks) {
  stats().nonzero_blocks += nonzero_blocks;
  stats().result_blocks += result_blocks;
  {
    std::lock_guard lock(mutex_);
    united_blocks_ += result_blocks;
    if (failure && !failure_) failure_ = std::make_unique<std::string>(*failure);
    if (--streams_left_ > 0) return;
  }
  if (failure_) stats().failures += 1;
  done_(failure_.get(), united_blocks_);
}

}  // namespace omnihvd
