#include "shims/nccl/union_pipeline.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "session/stats.h"
#include "shims/nccl/exchange.h"
#include "shims/nccl/hardware_queues.h"

namespace omnihvd {
namespace {

constexpr uint64_t kUnit = 256;
constexpr uint64_t kRecordsBytes = 16 << 20;  // of all ranks' marks, about
constexpr uint64_t kChunksOfSlot = 8;
constexpr uint64_t kSlotsOfSum = 32;  // dense

constexpr uint64_t round_up(uint64_t n, uint64_t to = kUnit) { return (n + to - 1) / to * to; }

void* pointer(CuAddress address) { return reinterpret_cast<void*>(address); }
CuAddress address_of(const void* p) { return reinterpret_cast<CuAddress>(p); }

void wait(CuStream stream, CuEvent event) {
  check_cuda(cuda().stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
}
void record(CuEvent event, CuStream stream) {
  check_cuda(cuda().event_record(event, stream), "cuEventRecord");
}
bool is_over(CuEvent event) { return cuda().event_query(event) == CuResult::success; }

}  // namespace

UnionPipeline::UnionPipeline(const Settings& agreed, int ranks, int rank,
                             const KernelTable& kernels, const std::atomic<bool>& stopping)
    : settings_(agreed), ranks_(ranks), rank_(rank), kernels_(kernels), stopping_(stopping) {
  const auto records = static_cast<uint64_t>(ranks);
  const uint64_t block = settings_.block_size;
  // A slot holds any chunk, which is at least a word of 32 blocks.
  slot_bytes_ = std::max<uint64_t>(round_up(settings_.gpu_chunk_bytes), 32 * block * 8);
  most_blocks_ = std::min(kSlotsOfSum * slot_bytes_ / block, kRecordsBytes * 8 / records) / 32 * 32;
  most_blocks_ = std::max<uint64_t>(most_blocks_, 32 * kUnit);
  const uint64_t words = most_blocks_ / 32;
  stride_ = round_up(kernels::kRecordHead + words * 4);

  uint64_t device = 0, host = 0;
  const auto take = [](uint64_t* used, uint64_t bytes) {
    return std::exchange(*used, *used + round_up(bytes));
  };
  for (Area& area : areas_) {  // offsets; the device's become addresses
    area.records = take(&device, records * stride_);
    area.united = take(&device, words * 4);
    area.prefix = take(&device, words * 4);
    area.starts = take(&device, (words + 1) * 8);
    area.note = take(&host, 8);
    area.counts = take(&host, words * sizeof(kernels::ChunkCounts));
    area.host_starts = take(&host, (words + 1) * 8);
  }
  for (Slot& slot : slots_) slot.buffer = take(&device, slot_bytes_);
  try {
    device_ = DeviceMemory(device);
    pinned_ = PinnedMemory(host);
    for (Area& area : areas_) {
      for (CuAddress* a : {&area.records, &area.united, &area.prefix, &area.starts})
        *a += device_.address();
      area.marked = make_event();
      area.done = make_event();
    }
    for (Slot& slot : slots_) {
      slot.buffer += device_.address();
      slot.free = make_event();
    }
    // Streams of another priority than the callers' have hardware queues of their own.
    int least = 0;
    check_cuda(cuda().ctx_get_stream_priority_range(&least, &priority_),
               "cuCtxGetStreamPriorityRange");
    for (CuStream* s : {&front_, &summing_, &back_}) {
      check_cuda(cuda().stream_create_with_priority(s, kCuStreamNonBlocking, priority_),
                 "cuStreamCreateWithPriority");
      note_stream(*s, priority_);
    }
  } catch (...) {
    release();
    throw;
  }
}

UnionPipeline::~UnionPipeline() { release(); }

void UnionPipeline::release() {
  for (const CuEvent e : events_) cuda().event_destroy(e);
  for (const CuStream s : {front_, summing_, back_}) {
    if (s == nullptr) continue;
    forget_stream(s, priority_);
    cuda().stream_destroy(s);
  }
}

CuEvent UnionPipeline::make_event() {
  CuEvent event = nullptr;
  check_cuda(cuda().event_create(&event, kCuEventDisableTiming), "cuEventCreate");
  events_.push_back(event);
  return event;
}

void UnionPipeline::connect(const NcclExchange& exchange) {
  comm_.split(exchange, 0, rank_);
  // At its first calls NCCL makes connections, for which it allocates memory; that may wait for the
  // device, and so for streams that wait for a sum. None does yet.
  const NcclComm comm = comm_.get();
  const auto made = [&](NcclResult r) { settle(r, comm, exchange.aborted(), "a first call"); };
  const Area& area = areas_[0];
  made(nccl().all_gather(pointer(area.records + uint64_t(rank_) * stride_), pointer(area.records),
                         stride_, NcclType::uint8, comm, front_));
  for (const uint64_t elements : {slot_bytes_ / 4, uint64_t(settings_.block_size)})
    made(nccl().all_reduce(pointer(slots_[0].buffer), pointer(slots_[0].buffer), elements,
                           NcclType::float32, NcclOp::sum, comm, front_));
  exchange.wait_until([&] {
    check_nccl(comm_.async_error(), "a first call");
    return idle();
  });
}

UnionPipeline::Shape UnionPipeline::shape_of(const UnionSum& sum) const {
  const uint64_t block = settings_.block_size;
  const uint64_t word_bytes = 32 * block * size_of(sum.dtype);
  Shape shape;
  shape.blocks = (sum.r.count + block - 1) / block;
  shape.words = (shape.blocks + 31) / 32;
  shape.words_per_chunk = std::max<uint64_t>(slot_bytes_ / kChunksOfSlot / word_bytes, 1);
  shape.chunks = (shape.words + shape.words_per_chunk - 1) / shape.words_per_chunk;
  return shape;
}

void UnionPipeline::find_union(const UnionSum& sum, double note, HostFunction known,
                               void* argument) {
  Area& area = area_of(sum);
  const GpuKernels& kernels = kernels_.of(sum.dtype);
  const Shape shape = shape_of(sum);
  const uint64_t stride = std::min(stride_, round_up(kernels::kRecordHead + shape.words * 4));
  const CuAddress mine = area.records + static_cast<uint64_t>(rank_) * stride;
  uint64_t bits = 0;
  std::memcpy(&bits, &note, sizeof bits);
  wait(front_, sum.ready);
  wait(front_, area.done);
  const bool in_place = sum.r.in == sum.r.out;
  kernels.mark(address_of(sum.r.in), sum.r.count,
               in_place ? uint32_t(kernels::kClearNegativeZeros) : 0, bits, mine, front_);
  record(area.marked, front_);
  settle(nccl().all_gather(pointer(mine), pointer(area.records), stride, NcclType::uint8,
                           comm_.get(), front_),
         comm_.get(), stopping_, "ncclAllGather of the marks");
  kernels.unite(area.records, stride, static_cast<uint32_t>(ranks_), static_cast<uint32_t>(rank_),
                shape.words, shape.words_per_chunk, area.united, area.prefix,
                pinned_.address() + area.counts, front_);
  check_cuda(cuda().memcpy_dtoh_async(at<uint8_t>(area.note), area.records, sizeof(double), front_),
             "cuMemcpyDtoHAsync");
  check_cuda(cuda().launch_host_func(front_, known, argument), "cuLaunchHostFunc");
}

SumSeen UnionPipeline::read_union(const UnionSum& sum, double* note) {
  const Area& area = area_of(sum);
  const Shape shape = shape_of(sum);
  const auto* const counts = at<kernels::ChunkCounts>(area.counts);
  uint64_t united = 0, own = 0, all = 0;
  auto* const starts = at<uint64_t>(area.host_starts);
  for (uint64_t i = 0; i < shape.chunks; ++i) {
    starts[i] = united;
    united += counts[i].united;
    own += counts[i].own;
    all += counts[i].all;
  }
  starts[shape.chunks] = united;
  OMNIHVD_INVARIANT(united <= shape.blocks);
  std::memcpy(note, at<uint8_t>(area.note), sizeof *note);
  const uint64_t bytes = sum.r.count * size_of(sum.dtype);
  Stats& s = stats();
  s.calls += 1;
  s.bytes_in += bytes;
  s.ring_bytes += ring_bytes(static_cast<uint64_t>(ranks_), bytes);
  s.blocks += shape.blocks;
  s.nonzero_blocks += own;
  s.result_blocks += united;
  const auto share = [&](double n) { return n / static_cast<double>(shape.blocks); };
  return {bytes, share(double(united)), share(double(all)) / ranks_};
}

const UnionPipeline::Batch& UnionPipeline::next_batch(Area& area) {
  if (area.used == area.batches.size()) {
    const CuEvent gathered = make_event(), summed = make_event();
    area.batches.push_back({gathered, summed, make_event()});
  }
  return area.batches[area.used++];
}

// As many chunks as fit a slot together, one batch after the other.
uint64_t UnionPipeline::sum_batches(const UnionSum& sum) {
  Area& area = area_of(sum);
  area.used = 0;
  const uint64_t block_bytes = settings_.block_size * size_of(sum.dtype);
  const uint64_t chunks = shape_of(sum).chunks;
  const auto* const starts = at<uint64_t>(area.host_starts);
  if (starts[chunks] == 0 && sum.r.in == sum.r.out) return 0;
  check_cuda(cuda().memcpy_htod_async(area.starts, starts, (chunks + 1) * 8, front_),
             "cuMemcpyHtoDAsync");
  for (uint64_t first = 0, end = 0; first < chunks; first = end) {
    if (stopping_) throw Error("the communicator was aborted");
    const auto fits = [&](uint64_t e) {
      return (starts[e] - starts[first]) * block_bytes <= slot_bytes_;
    };
    for (end = first + 1; end < chunks && fits(end + 1);) ++end;
    sum_batch(sum, area, first, end);
  }
  return starts[chunks] * block_bytes;
}

void UnionPipeline::sum_batch(const UnionSum& sum, Area& area, uint64_t first, uint64_t end) {
  const GpuKernels& kernels = kernels_.of(sum.dtype);
  const Shape shape = shape_of(sum);
  const Batch& batch = next_batch(area);
  const Slot& slot = slots_[batches_++ % kSlots];
  const auto* const starts = at<uint64_t>(area.host_starts);
  const uint64_t elements = (starts[end] - starts[first]) * settings_.block_size;
  const kernels::Union part{reinterpret_cast<const uint32_t*>(area.united),
                            reinterpret_cast<const uint32_t*>(area.prefix),
                            reinterpret_cast<const uint64_t*>(area.starts),
                            starts[first],
                            first * shape.words_per_chunk,
                            std::min(end * shape.words_per_chunk, shape.words),
                            shape.words_per_chunk};
  wait(front_, slot.free);
  if (elements > 0) kernels.gather(address_of(sum.r.in), sum.r.count, part, slot.buffer, front_);
  record(batch.gathered, front_);
  wait(summing_, batch.gathered);
  if (elements > 0)
    settle(nccl().all_reduce(pointer(slot.buffer), pointer(slot.buffer), elements, sum.r.type,
                             sum.r.op, comm_.get(), summing_),
           comm_.get(), stopping_, "ncclAllReduce of the union");
  record(batch.summed, summing_);
  wait(back_, batch.summed);
  const bool fill = sum.r.in != sum.r.out;
  if (elements > 0 || fill)
    kernels.spread(address_of(sum.r.out), sum.r.count, part, slot.buffer, fill, back_);
  record(batch.spread, back_);
  record(slot.free, back_);
}

uint64_t UnionPipeline::sum_whole(const UnionSum& sum) {
  Area& area = area_of(sum);
  area.used = 0;
  const Batch& batch = next_batch(area);
  record(batch.gathered, front_);
  wait(summing_, batch.gathered);
  settle(nccl().all_reduce(sum.r.in, sum.r.out, sum.r.count, sum.r.type, sum.r.op, comm_.get(),
                           summing_),
         comm_.get(), stopping_, "ncclAllReduce");
  record(batch.summed, summing_);
  wait(back_, batch.summed);
  record(batch.spread, back_);
  return sum.r.count * size_of(sum.dtype);
}

void UnionPipeline::end(const UnionSum& sum, HostFunction ended, void* argument) {
  record(area_of(sum).done, back_);
  check_cuda(cuda().launch_host_func(back_, ended, argument), "cuLaunchHostFunc");
}

// What is before the first step that is not over has been done.
UnionProgress UnionPipeline::progress(const UnionSum& sum, bool known) const {
  using Waits = UnionProgress::Waits;
  const Area& area = areas_[sum.turn % 2];
  if (!known) {  // else the next sum in this area may have recorded these again
    if (!is_over(sum.ready)) return {sum.turn, 0, Waits::for_input};
    if (!is_over(area.marked)) return {sum.turn, 1, Waits::for_kernel};
    return {sum.turn, 2, Waits::for_others};
  }
  uint64_t steps = 3;
  for (uint64_t i = 0; i < area.used; ++i) {
    const Batch& batch = area.batches[i];
    if (is_over(batch.spread)) {
      steps += 3;
      continue;
    }
    if (!is_over(batch.gathered)) return {sum.turn, steps, Waits::for_kernel};
    if (!is_over(batch.summed)) return {sum.turn, steps + 1, Waits::for_others};
    return {sum.turn, steps + 2, Waits::for_kernel};
  }
  return {sum.turn, steps, Waits::for_kernel};
}

bool UnionPipeline::idle() const {
  for (const CuStream s : {front_, summing_, back_})
    if (cuda().stream_query(s) == CuResult::not_ready) return false;
  return true;
}

}  // namespace omnihvd
