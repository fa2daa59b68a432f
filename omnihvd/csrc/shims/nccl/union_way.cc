#include "shims/nccl/union_way.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "shims/nccl/exchange.h"

namespace omnihvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kUnit = 256;
constexpr uint64_t kRecordsBytes = 16 << 20;  // of all ranks' marks, about
constexpr uint64_t kChunksOfSlot = 8;
constexpr uint64_t kSlotsOfSum = 32;  // dense
constexpr double kPatience_s = 5, kQueuePatience_s = 10;
constexpr uint64_t kSampleBytes = 1 << 20;  // less says little of a link

constexpr uint64_t round_up(uint64_t n, uint64_t to = kUnit) { return (n + to - 1) / to * to; }

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void* pointer(CuAddress address) { return reinterpret_cast<void*>(address); }
CuAddress address_of(const void* p) { return reinterpret_cast<CuAddress>(p); }

}  // namespace

UnionWay::UnionWay(const Settings& agreed, const Network& network, int rank, CuContext context,
                   const KernelTable& kernels, Failed failed)
    : settings_(agreed),
      rank_(rank),
      context_(context),
      kernels_(kernels),
      failed_(std::move(failed)),
      network_(network) {
  const auto ranks = static_cast<uint64_t>(network.ranks);
  const uint64_t block = settings_.block_size;
  // A slot holds any chunk, which is at least a word of 32 blocks.
  slot_bytes_ = std::max<uint64_t>(round_up(settings_.gpu_chunk_bytes), 32 * block * 8);
  most_blocks_ = std::min(kSlotsOfSum * slot_bytes_ / block, kRecordsBytes * 8 / ranks) / 32 * 32;
  most_blocks_ = std::max<uint64_t>(most_blocks_, 32 * kUnit);
  const uint64_t words = most_blocks_ / 32;
  stride_ = round_up(kernels::kRecordHead + words * 4);

  uint64_t device = 0, host = round_up(kPlaces * sizeof(Place));
  const auto take = [](uint64_t* used, uint64_t bytes) {
    return std::exchange(*used, *used + round_up(bytes));
  };
  for (Area& area : areas_) {  // offsets; the device's become addresses
    area.records = take(&device, ranks * stride_);
    area.united = take(&device, words * 4);
    area.prefix = take(&device, words * 4);
    area.starts = take(&device, (words + 1) * 8);
    area.note = take(&host, 8);
    area.counts = take(&host, words * sizeof(kernels::ChunkCounts));
    area.host_starts = take(&host, (words + 1) * 8);
  }
  for (Slot& slot : slots_) slot.buffer = take(&device, slot_bytes_);
  try {
    const auto event = [this](CuEvent* e) {
      check_cuda(cuda().event_create(e, kCuEventDisableTiming), "cuEventCreate");
      events_.push_back(*e);
    };
    device_ = DeviceMemory(device);
    pinned_ = PinnedMemory(host);
    std::memset(pinned_.data(), 0, host);
    for (Area& area : areas_) {
      for (CuAddress* a : {&area.records, &area.united, &area.prefix, &area.starts})
        *a += device_.address();
      event(&area.marked);
      event(&area.done);
    }
    for (Slot& slot : slots_) {
      slot.buffer += device_.address();
      for (CuEvent* e : {&slot.gathered, &slot.summed, &slot.spread}) event(e);
    }
    ready_.resize(kPlaces);
    for (CuEvent& e : ready_) event(&e);
    // Streams of another priority than the callers' have hardware queues of their own.
    int least = 0, greatest = 0;
    check_cuda(cuda().ctx_get_stream_priority_range(&least, &greatest),
               "cuCtxGetStreamPriorityRange");
    for (CuStream* s : {&front_, &summing_, &back_})
      check_cuda(cuda().stream_create_with_priority(s, kCuStreamNonBlocking, greatest),
                 "cuStreamCreateWithPriority");
  } catch (...) {
    drained_ = true;
    for (const CuEvent e : events_) cuda().event_destroy(e);
    for (const CuStream s : {front_, summing_, back_})
      if (s != nullptr) cuda().stream_destroy(s);
    throw;
  }
}

UnionWay::~UnionWay() {
  for (const CuEvent e : events_) cuda().event_destroy(e);
  for (const CuStream s : {front_, summing_, back_}) cuda().stream_destroy(s);
}

void UnionWay::connect(NcclComm callers, const std::atomic<bool>& aborted) {
  comm_.split(callers, 0, rank_, aborted);
  thread_ = std::thread([this] { run(); });
}

uint64_t UnionWay::words_per_chunk(DType dtype) const {
  const uint64_t word_bytes = 32 * settings_.block_size * size_of(dtype);
  return std::max<uint64_t>(slot_bytes_ / kChunksOfSlot / word_bytes, 1);
}

// --- on the calling thread
// ------------------------------------------------------------------------

// All ranks have learnt the same when they choose: what the sums tell that were called kPlaces
// calls ago, whatever is known of later ones.
GpuWay UnionWay::next(uint64_t count, DType dtype) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto wait = [&](auto condition) {
    changed_.wait(lock, [&] { return stopping_ || condition(); });
    if (stopping_) throw Error("a sum on this communicator has failed");
  };
  wait([&] { return ended_ + kPlaces > made_; });
  while (!calls_of_turns_.empty() && calls_of_turns_.front() + kPlaces <= calls_) {
    wait([&] { return !verdicts_.empty(); });
    choices_.learn(verdicts_.front());
    verdicts_.pop_front();
    calls_of_turns_.pop_front();
  }
  const GpuWay way = choices_.next(count, dtype);
  if (way == GpuWay::unite) calls_of_turns_.push_back(calls_);
  ++calls_;
  return way;
}

void UnionWay::sum(const NcclReduction& r, DType dtype) {
  const uint64_t turn = made_++;
  const CuAddress at = pinned_.address() + (turn % kPlaces) * sizeof(Place);
  const auto number = static_cast<uint32_t>(turn / kPlaces + 1);
  place(turn).status = 1;
  check_cuda(cuda().event_record(ready_[turn % kPlaces], r.stream), "cuEventRecord");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back({r, dtype, turn, Clock::now()});
    queued_ = made_;
    if (released_) place(turn).flag = number;
    changed_.notify_all();
  }
  check_cuda(cuda().stream_wait_value32(r.stream, at + offsetof(Place, flag), number,
                                        kCuWaitGreaterOrEqual),
             "cuStreamWaitValue32");
  kernels_.of(dtype).poison(address_of(r.out), r.count, at + offsetof(Place, status), r.stream);
}

// --- on the thread
// --------------------------------------------------------------------------------

void UnionWay::run() {
  std::string why;
  try {
    const CudaScope scope(context_);
    try {
      while (true) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || quit_ || !jobs_.empty(); });
        if (stopping_ || jobs_.empty()) break;
        const Job job = jobs_.front();
        jobs_.pop_front();
        lock.unlock();
        process(job);
      }
    } catch (const std::exception& error) {
      if (!stopping_) why = error.what();
    }
    if (!why.empty()) failed_(why);
    if (!why.empty() || stopping_) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop();
      }
      drain();
      release_all();
    }
  } catch (const std::exception& error) {
    failed_(error.what());
    release_all();
  }
}

void UnionWay::process(const Job& job) {
  Area& area = areas_[job.turn % 2];
  find_union(job, area);
  wait_for_union(job, area);
  const SumSeen seen = read_union(job, area);
  GpuWay better = GpuWay::unite;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::memcpy(&network_.seconds_per_byte, at<uint8_t>(area.note), sizeof(double));
    better = choose(settings_.gpu, seen, network_);
    verdicts_.push_back(better);
  }
  Begun begun{this, Way::union_of_blocks, job.turn, seen.bytes, 0, job.made, Clock::now()};
  if (better == GpuWay::original) begun.way = Way::original;
  begun.summed_bytes = better == GpuWay::original ? sum_whole(job) : sum_batches(job, area);
  stats().library_bytes += ring_bytes(static_cast<uint64_t>(network_.ranks), begun.summed_bytes);
  end_of(area, begun);
}

void UnionWay::find_union(const Job& job, Area& area) {
  const CudaDriver& driver = cuda();
  const GpuKernels& kernels = kernels_.of(job.dtype);
  const uint64_t words =
      (job.r.count + 32 * settings_.block_size - 1) / (32 * settings_.block_size);
  const uint64_t stride = std::min(stride_, round_up(kernels::kRecordHead + words * 4));
  const CuAddress mine = area.records + static_cast<uint64_t>(rank_) * stride;
  double note = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    note = my_seconds_per_byte_;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &note, sizeof bits);
  check_cuda(driver.stream_wait_event(front_, ready_[job.turn % kPlaces], 0), "cuStreamWaitEvent");
  check_cuda(driver.stream_wait_event(front_, area.done, 0), "cuStreamWaitEvent");
  const bool in_place = job.r.in == job.r.out;
  kernels.mark(address_of(job.r.in), job.r.count,
               in_place ? uint32_t(kernels::kClearNegativeZeros) : 0, bits, mine, front_);
  check_cuda(driver.event_record(area.marked, front_), "cuEventRecord");
  settle(nccl().all_gather(pointer(mine), pointer(area.records), stride, NcclType::uint8,
                           comm_.get(), front_),
         comm_.get(), stopping_, "ncclAllGather of the marks");
  kernels.unite(area.records, stride, static_cast<uint32_t>(network_.ranks),
                static_cast<uint32_t>(rank_), words, words_per_chunk(job.dtype), area.united,
                area.prefix, pinned_.address() + area.counts, front_);
  check_cuda(driver.memcpy_dtoh_async(at<uint8_t>(area.note), area.records, sizeof(double), front_),
             "cuMemcpyDtoHAsync");
  auto* const call = new std::pair<UnionWay*, uint64_t>(this, job.turn);
  check_cuda(driver.launch_host_func(front_, &UnionWay::on_known, call), "cuLaunchHostFunc");
}

void UnionWay::on_known(void* argument) {
  const std::unique_ptr<std::pair<UnionWay*, uint64_t>> call(
      static_cast<std::pair<UnionWay*, uint64_t>*>(argument));
  UnionWay& self = *call->first;
  const std::lock_guard<std::mutex> lock(self.mutex_);
  self.areas_[call->second % 2].known = call->second + 1;
  self.changed_.notify_all();
}

// Who is late is another rank, unless our own first kernel does not even begin.
void UnionWay::wait_for_union(const Job& job, const Area& area) {
  std::optional<Clock::time_point> input, marks;
  double next_warning_s = settings_.stall_warning_s;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(200),
                            [&] { return stopping_ || area.known == job.turn + 1; })) {
    lock.unlock();
    const auto is_over = [](CuEvent event) {
      return cuda().event_query(event) == CuResult::success;
    };
    if (!input && is_over(ready_[job.turn % kPlaces])) input = Clock::now();
    if (!marks && is_over(area.marked)) marks = Clock::now();
    if (input && !marks && seconds_since(*input) > kQueuePatience_s && nothing_before(job))
      throw Error(
          "a kernel did not begin for 10 s: its stream shares a hardware queue with one that waits "
          "for it. Set CUDA_DEVICE_MAX_CONNECTIONS=32, or OMNIHVD_GPU=stream");
    const double waited_s = marks ? seconds_since(*marks) : 0;
    if (settings_.timeout_s > 0 && waited_s > settings_.timeout_s)
      throw Error("a sum of " + std::to_string(job.r.count) +
                  " elements waited too long for the other ranks (OMNIHVD_TIMEOUT)");
    if (settings_.stall_warning_s > 0 && waited_s > next_warning_s) {
      log(LogLevel::warning, "a sum of ", job.r.count, " elements has waited ", long(waited_s),
          " s for other ranks of its communicator");
      next_warning_s = waited_s + settings_.stall_warning_s;
    }
    lock.lock();
  }
  if (stopping_) throw Error("the communicator was aborted");
}

bool UnionWay::nothing_before(const Job& job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_ == job.turn;
}

SumSeen UnionWay::read_union(const Job& job, const Area& area) {
  const uint64_t block = settings_.block_size, width = size_of(job.dtype);
  const uint64_t blocks = (job.r.count + block - 1) / block;
  const uint64_t chunk_blocks = 32 * words_per_chunk(job.dtype);
  const uint64_t chunks = (blocks + chunk_blocks - 1) / chunk_blocks;
  const auto* const counts = at<kernels::ChunkCounts>(area.counts);
  uint64_t united = 0, own = 0, all = 0;
  auto* const starts = at<uint64_t>(area.host_starts);
  for (uint64_t i = 0; i < chunks; ++i) {
    starts[i] = united;
    united += counts[i].united;
    own += counts[i].own;
    all += counts[i].all;
  }
  starts[chunks] = united;
  OMNIHVD_INVARIANT(united <= blocks);
  const uint64_t bytes = job.r.count * width;
  Stats& s = stats();
  s.calls += 1;
  s.bytes_in += bytes;
  s.ring_bytes += ring_bytes(static_cast<uint64_t>(network_.ranks), bytes);
  s.blocks += blocks;
  s.nonzero_blocks += own;
  s.result_blocks += united;
  const auto share = [blocks](double n) { return n / static_cast<double>(blocks); };
  return {bytes, share(double(united)), share(double(all)) / network_.ranks};
}

// As many chunks as fit a slot together, one batch after the other. Returns the bytes summed.
uint64_t UnionWay::sum_batches(const Job& job, const Area& area) {
  const uint64_t block_bytes = settings_.block_size * size_of(job.dtype);
  const uint64_t blocks = (job.r.count + settings_.block_size - 1) / settings_.block_size;
  const uint64_t chunk_blocks = 32 * words_per_chunk(job.dtype);
  const uint64_t chunks = (blocks + chunk_blocks - 1) / chunk_blocks;
  const auto* const starts = at<uint64_t>(area.host_starts);
  if (starts[chunks] == 0 && job.r.in == job.r.out) return 0;
  check_cuda(cuda().memcpy_htod_async(area.starts, starts, (chunks + 1) * 8, front_),
             "cuMemcpyHtoDAsync");
  for (uint64_t first = 0, end = 0; first < chunks; first = end) {
    const auto fits = [&](uint64_t e) {
      return (starts[e] - starts[first]) * block_bytes <= slot_bytes_;
    };
    for (end = first + 1; end < chunks && fits(end + 1);) ++end;
    sum_batch(job, area, first, end);
  }
  return starts[chunks] * block_bytes;
}

void UnionWay::sum_batch(const Job& job, const Area& area, uint64_t first, uint64_t end) {
  const CudaDriver& driver = cuda();
  const auto wait = [&](CuStream stream, CuEvent event) {
    check_cuda(driver.stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
  };
  const auto record = [&](CuEvent event, CuStream stream) {
    check_cuda(driver.event_record(event, stream), "cuEventRecord");
  };
  const GpuKernels& kernels = kernels_.of(job.dtype);
  const Slot& slot = slots_[batches_++ % kSlots];
  const auto* const starts = at<uint64_t>(area.host_starts);
  const uint64_t per_chunk = words_per_chunk(job.dtype);
  const uint64_t words =
      (job.r.count + 32 * settings_.block_size - 1) / (32 * settings_.block_size);
  const uint64_t elements = (starts[end] - starts[first]) * settings_.block_size;
  const kernels::Union part{reinterpret_cast<const uint32_t*>(area.united),
                            reinterpret_cast<const uint32_t*>(area.prefix),
                            reinterpret_cast<const uint64_t*>(area.starts),
                            starts[first],
                            first * per_chunk,
                            std::min(end * per_chunk, words),
                            per_chunk};
  wait(front_, slot.spread);
  if (elements > 0) kernels.gather(address_of(job.r.in), job.r.count, part, slot.buffer, front_);
  record(slot.gathered, front_);
  wait(summing_, slot.gathered);
  if (elements > 0)
    settle(nccl().all_reduce(pointer(slot.buffer), pointer(slot.buffer), elements, job.r.type,
                             job.r.op, comm_.get(), summing_),
           comm_.get(), stopping_, "ncclAllReduce of the union");
  record(slot.summed, summing_);
  wait(back_, slot.summed);
  const bool fill = job.r.in != job.r.out;
  if (elements > 0 || fill)
    kernels.spread(address_of(job.r.out), job.r.count, part, slot.buffer, fill, back_);
  record(slot.spread, back_);
}

uint64_t UnionWay::sum_whole(const Job& job) {
  check_cuda(cuda().stream_wait_event(summing_, ready_[job.turn % kPlaces], 0),
             "cuStreamWaitEvent");
  settle(nccl().all_reduce(job.r.in, job.r.out, job.r.count, job.r.type, job.r.op, comm_.get(),
                           summing_),
         comm_.get(), stopping_, "ncclAllReduce");
  const Slot& slot = slots_[batches_++ % kSlots];
  check_cuda(cuda().event_record(slot.summed, summing_), "cuEventRecord");
  check_cuda(cuda().stream_wait_event(back_, slot.summed, 0), "cuStreamWaitEvent");
  return job.r.count * size_of(job.dtype);
}

void UnionWay::end_of(const Area& area, const Begun& begun) {
  check_cuda(cuda().event_record(area.done, back_), "cuEventRecord");
  auto call = std::make_unique<Begun>(begun);
  check_cuda(cuda().launch_host_func(back_, &UnionWay::on_end, call.get()), "cuLaunchHostFunc");
  call.release();  // on_end() has it now
}

// NCCL ends early only when it is aborted, which is after stopping_ has been set.
void UnionWay::on_end(void* argument) {
  const std::unique_ptr<Begun> begun(static_cast<Begun*>(argument));
  UnionWay& self = *begun->owner;
  const std::lock_guard<std::mutex> lock(self.mutex_);
  if (self.stopping_) return;
  count_way(begun->way, begun->bytes, begun->made);
  self.measured(*begun);
  Place& place = self.place(begun->turn);
  place.status = 0;
  __atomic_store_n(&place.flag, uint32_t(begun->turn / kPlaces + 1), __ATOMIC_RELEASE);
  ++self.ended_;
  self.changed_.notify_all();
}

// The first sums make NCCL's connections.
void UnionWay::measured(const Begun& begun) {
  if (begun.summed_bytes < std::min(kSampleBytes, slot_bytes_) || ++samples_ < 3) return;
  const double sample = seconds_since(begun.known) / double(begun.summed_bytes);
  my_seconds_per_byte_ += (sample - my_seconds_per_byte_) / (my_seconds_per_byte_ == 0 ? 1 : 4);
}

// --- the end
// --------------------------------------------------------------------------------------

// Until the streams have done with the callers' memory, which they soon have as NCCL is aborted.
void UnionWay::drain() {
  const auto begin = Clock::now();
  const auto idle = [this] {
    for (const CuStream s : {front_, summing_, back_})
      if (cuda().stream_query(s) == CuResult::not_ready) return false;
    return true;
  };
  while (!idle() && seconds_since(begin) < kPatience_s)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  const bool drained = idle();
  const std::lock_guard<std::mutex> lock(mutex_);
  drained_ = drained;
}

void UnionWay::release_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  released_ = true;
  for (uint64_t turn = queued_ < kPlaces ? 0 : queued_ - kPlaces; turn < queued_; ++turn)
    __atomic_store_n(&place(turn).flag, uint32_t(turn / kPlaces + 1), __ATOMIC_RELEASE);
  changed_.notify_all();
}

// With the mutex. Aborting NCCL may wait for the callers' streams, and frees whoever is inside it.
void UnionWay::stop() {
  if (!stopping_.exchange(true)) {
    drained_ = false;
    aborter_ = std::thread([this] { comm_.abort(); });
  }
  changed_.notify_all();
}

void UnionWay::interrupt() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (quit_ || !thread_.joinable()) return;
  stop();
  changed_.wait_for(lock, std::chrono::duration<double>(kPatience_s), [&] { return released_; });
  lock.unlock();
  release_all();
}

bool UnionWay::finish() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || ended_ == queued_; });
    quit_ = true;
    changed_.notify_all();
    // A thread that CUDA or NCCL holds is left alone, with all that it may use.
    if (stopping_ && !changed_.wait_for(lock, std::chrono::duration<double>(kPatience_s),
                                        [&] { return released_; }))
      return false;
  }
  if (thread_.joinable()) thread_.join();
  if (aborter_.joinable()) aborter_.join();
  comm_.destroy();
  return drained_;
}

}  // namespace omnihvd
