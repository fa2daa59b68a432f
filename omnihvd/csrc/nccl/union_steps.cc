#include "nccl/union_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr uint64_t kUnit = 256;
constexpr uint64_t kTrailerBytes = 4;
constexpr uint64_t kChunkWords = 128;       // that a CTA of unite handles at a time
constexpr uint64_t kShareUnit = 16;         // bytes; NCCL is fastest with multiples
constexpr uint64_t kWindowBytes = 1 << 20;  // of host memory, for blocks beyond the capacity
constexpr uint64_t kSeen = 256;             // sums until a record for the host is overwritten

constexpr uint64_t round_up(uint64_t n, uint64_t to = kUnit) { return (n + to - 1) / to * to; }

// Where a sum's record is in pinned memory: behind the words of `rest`.
constexpr uint64_t seen_at(uint64_t number) {
  return round_up(sizeof(kernels::Rest)) + number % kSeen * sizeof(kernels::Seen);
}

void* pointer(CuAddress address) { return reinterpret_cast<void*>(address); }
CuAddress address_of(const void* p) { return reinterpret_cast<CuAddress>(p); }

}  // namespace

UnionSteps::UnionSteps(const Settings& agreed, int ranks, const KernelTable& kernels,
                       std::shared_ptr<NcclGrid> levels)
    : settings_(agreed), ranks_(uint64_t(ranks)), kernels_(kernels), levels_(std::move(levels)) {
  buffer_bytes_ = std::max<uint64_t>(round_up(settings_.gpu_chunk_bytes), settings_.block_size * 8);
  const uint64_t words = kMostBlocks / 32, chunks = words / kChunkWords + 1;
  uint64_t device = 0;
  const auto take = [&device](CuAddress* at, uint64_t bytes) {
    *at = std::exchange(device, device + round_up(bytes));
  };
  take(&own_, kMostBlocks + kTrailerBytes);
  take(&all_, kMostBlocks + kTrailerBytes);
  take(&united_, words * 4);
  take(&prefix_, words * 4);
  take(&counts_, chunks * sizeof(kernels::ChunkCounts));
  take(&starts_, (chunks + 1) * 8);
  take(&arrived_, 4);
  take(&trial_, kTrialBlocks * settings_.block_size * 4);
  take(&buffer_, buffer_bytes_ + (levels_ ? uint64_t(levels_->local_size()) * kShareUnit : 0));
  device_ = DeviceMemory(device);
  for (CuAddress* at :
       {&own_, &all_, &united_, &prefix_, &counts_, &starts_, &arrived_, &trial_, &buffer_})
    *at += device_.address();
  window_ = round_up(sizeof(kernels::Rest)) + kSeen * sizeof(kernels::Seen);
  pinned_ = PinnedMemory(window_ + kWindowBytes);
  std::memset(pinned_.data(), 0, window_);
  check_cuda(cuda().event_create(&free_, kCuEventDisableTiming), "cuEventCreate");
}

UnionSteps::~UnionSteps() {
  if (free_ != nullptr) cuda().event_destroy(free_);
}

void UnionSteps::connect(const NcclExchange& exchange) {
  const auto made = [&](NcclResult result, const char* what) {
    settle(result, exchange.comm(), exchange.aborted(), what);
  };
  const CuStream stream = exchange.stream();
  check_cuda(cuda().memset_d8_async(arrived_, 0, 4, stream), "cuMemsetD8Async");
  const auto all_reduce = [&](uint64_t count, NcclType type, NcclOp op, NcclComm comm) {
    made(nccl().all_reduce(pointer(buffer_), pointer(buffer_), count, type, op, comm, stream),
         "ncclAllReduce");
  };
  for (uint64_t bytes = 1024; bytes <= buffer_bytes_; bytes *= 4) {
    for (const NcclOp op : {NcclOp::sum, NcclOp::avg})
      all_reduce(bytes / 4, NcclType::float32, op, exchange.comm());
    if (bytes <= kMostBlocks) all_reduce(bytes, NcclType::uint8, NcclOp::max, exchange.comm());
    if (!levels_) continue;
    const uint64_t share = bytes / 4 / uint64_t(levels_->local_size());
    void* const mine = pointer(buffer_ + uint64_t(levels_->local_index()) * share * 4);
    made(nccl().reduce_scatter(pointer(buffer_), mine, share, NcclType::float32, NcclOp::sum,
                               inside(), stream),
         "ncclReduceScatter inside the hosts");
    all_reduce(share, NcclType::float32, NcclOp::sum, between());
    made(nccl().all_gather(mine, pointer(buffer_), share, NcclType::float32, inside(), stream),
         "ncclAllGather inside the hosts");
  }
  wait_for(exchange, "NCCL's first collectives on a communicator");
}

void UnionSteps::wait_for(const NcclExchange& exchange, const char* what) const {
  exchange.wait_until(what, [&] {
    if (levels_) check_nccl(levels_->async_error(), "NCCL inside the hosts, or between them");
    const CuResult state = cuda().stream_query(exchange.stream());
    if (state != CuResult::not_ready) check_cuda(state, what);
    return state == CuResult::success;
  });
}

volatile const kernels::Seen& UnionSteps::seen(uint64_t number) const {
  return *reinterpret_cast<volatile const kernels::Seen*>(pinned_.data() + seen_at(number));
}

uint64_t UnionSteps::window_blocks(DType dtype) const {
  return kWindowBytes / (settings_.block_size * size_of(dtype));
}

kernels::Union UnionSteps::blocks_of(const UnionSum& sum, uint64_t first, uint64_t room) const {
  return {reinterpret_cast<const uint32_t*>(united_),
          reinterpret_cast<const uint32_t*>(prefix_),
          reinterpret_cast<const uint64_t*>(starts_),
          words_of(sum),
          kChunkWords,
          first,
          room};
}

kernels::Union UnionSteps::part_of(const UnionSum& sum, uint64_t part) const {
  const uint64_t first = part * part_blocks(sum);
  return blocks_of(sum, first, std::min(part_blocks(sum), sum.call.capacity - first));
}

void UnionSteps::mark(const UnionSum& sum, uint32_t trailer) {
  check_cuda(cuda().stream_wait_event(sum.r.stream, free_, 0), "cuStreamWaitEvent");
  // If NCCL makes the sum, its input must not change.
  const bool clear = sum.call.capacity > 0 && sum.r.in == sum.r.out;
  kernels_.of(sum.dtype).mark(address_of(sum.r.in), sum.r.count, words_of(sum),
                              clear ? uint32_t(kernels::kClearNegativeZeros) : 0, trailer, own_,
                              sum.r.stream);
}

NcclResult UnionSteps::exchange(const UnionSum& sum) {
  return nccl().all_reduce(pointer(own_), pointer(all_), words_of(sum) * 32 + kTrailerBytes,
                           NcclType::uint8, NcclOp::max, sum.r.comm, sum.r.stream);
}

void UnionSteps::unite(const UnionSum& sum) {
  kernels_.of(sum.dtype).unite(own_, all_, words_of(sum), kChunkWords, united_, prefix_, counts_,
                               arrived_, starts_, pinned_.address() + seen_at(sum.call.number),
                               sum.call.number + 1, sum.r.stream);
}

void UnionSteps::gather(const UnionSum& sum, uint64_t part) {
  kernels_.of(sum.dtype).gather(address_of(sum.r.in), sum.r.count, part_of(sum, part), buffer_,
                                sum.r.stream);
}

NcclResult UnionSteps::reduce(const UnionSum& sum, uint64_t part) {
  return nccl().all_reduce(pointer(buffer_), pointer(buffer_),
                           part_of(sum, part).room * settings_.block_size, sum.r.type, sum.r.op,
                           sum.r.comm, sum.r.stream);
}

// Shares are equal, as NCCL requires. So NCCL also sums the memory behind the blocks, which is not
// used.
UnionSteps::Share UnionSteps::share_of(const UnionSum& sum, uint64_t part) const {
  const uint64_t width = size_of(sum.dtype), ranks = uint64_t(levels_->local_size());
  const uint64_t count = part_of(sum, part).room * settings_.block_size;
  const uint64_t share = round_up((count + ranks - 1) / ranks, kShareUnit / width);
  return {share, pointer(buffer_ + uint64_t(levels_->local_index()) * share * width)};
}

NcclResult UnionSteps::scatter_inside(const UnionSum& sum, uint64_t part, NcclComm comm) {
  const Share share = share_of(sum, part);
  return nccl().reduce_scatter(pointer(buffer_), share.mine, share.count, sum.r.type, sum.r.op,
                               comm, sum.r.stream);
}

NcclResult UnionSteps::reduce_between(const UnionSum& sum, uint64_t part, NcclComm comm) {
  const Share share = share_of(sum, part);
  return nccl().all_reduce(share.mine, share.mine, share.count, sum.r.type, sum.r.op, comm,
                           sum.r.stream);
}

NcclResult UnionSteps::gather_inside(const UnionSum& sum, uint64_t part, NcclComm comm) {
  const Share share = share_of(sum, part);
  return nccl().all_gather(share.mine, pointer(buffer_), share.count, sum.r.type, comm,
                           sum.r.stream);
}

void UnionSteps::spread(const UnionSum& sum, uint64_t part) {
  const bool fill = part == 0 && sum.r.in != sum.r.out;
  kernels_.of(sum.dtype).spread(address_of(sum.r.out), sum.r.count, part_of(sum, part), buffer_,
                                fill, sum.r.stream);
}

void UnionSteps::end(const UnionSum& sum) {
  if (sum.call.capacity > 0) {
    kernels_.of(sum.dtype).rest(address_of(sum.r.in), address_of(sum.r.out), sum.r.count,
                                blocks_of(sum, sum.call.capacity, window_blocks(sum.dtype)),
                                pinned_.address(), pinned_.address() + window_,
                                sum.r.op == NcclOp::avg ? 1.0 / double(ranks_) : 1.0, sum.r.stream);
  }
  check_cuda(cuda().event_record(free_, sum.r.stream), "cuEventRecord");
}

}  // namespace omnihvd
