// A streamed ncclAllReduce queues this on the caller's stream:
//
//   wait        until the staging set is free
//   scale       of an average: in place from here on, as its parts, and not their sum, fit the type
//   clear       the counters; out of place, the output
//   compact     a kernel that writes the non-zero blocks straight into pinned memory, and a copy of
//               what it has counted
//   begin       a host function: progress threads start to reduce (it does not wait for them)
//   wait        for the set's flag: a progress thread sets it once the result is in pinned memory
//   scatter     a kernel that writes the result's blocks from there to the output
//
// The calling thread waits for none of it. Host functions and progress threads make no CUDA calls.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "nccl/group.h"

namespace omnihvd {

// The data of a collective for the host function and the progress threads.
struct NcclGroup::Call {
  std::shared_ptr<NcclGroup> owner;
  Levels::Begin reduce;
  std::shared_ptr<StagedCollective> staged;
  uint64_t bytes;  // of the caller's tensor

  static void begin(void* call);
};

void NcclGroup::Call::begin(void* argument) {
  const std::unique_ptr<Call> call(static_cast<Call*>(argument));
  const std::shared_ptr<StagedCollective> staged = call->staged;
  if (!staged->begin() || call->owner->aborted_) return staged->end(true);
  const auto begun = std::chrono::steady_clock::now();
  const auto done = [staged, begun, bytes = call->bytes,
                     owner = std::weak_ptr<NcclGroup>(call->owner)](const std::string* why,
                                                                    uint64_t) {
    if (why == nullptr) count_way(Way::stream, bytes, begun);
    if (const auto group = owner.lock(); why != nullptr && group) {
      group->fail(*why);
      group->leave_levels(false);
    }
    staged->end(why != nullptr);
  };
  try {
    call->reduce(done);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    done(&why, 0);
  }
}

void NcclGroup::stream(const NcclReduction& r, DType dtype) {
  or_fail_for_good([&] {
    if (parts()) return two_levels(r, dtype);
    const auto set =
        stream_part(reinterpret_cast<CuAddress>(r.in), reinterpret_cast<CuAddress>(r.out), r.count,
                    dtype, r.op == NcclOp::avg ? size() : 1, r);
    check_cuda(cuda().event_record(set->free, r.stream), "cuEventRecord");
  });
}

StagingLayout NcclGroup::layout_of(const NcclReduction& r, DType dtype) const {
  return StagingLayout(part_of(r.count, size_of(dtype)), dtype, terms_.settings().block_size,
                       grid_ ? grid_->local_size() : 1);
}

// A tensor larger than all before needs more memory. If some rank cannot allocate it, NCCL makes
// this call, and all calls as large.
bool NcclGroup::make_room(const NcclReduction& r, DType dtype) {
  bool enough = true;
  or_fail_for_good([&] {
    if (!std::atomic_load(&levels_)) connect_streams();
    StagingLayout needed = layout_of(r, dtype);
    enough = needed.host_bytes < lacking_bytes_;
    if (!enough || needed.blocks == 0 ||
        (needed.host_bytes <= agreed_host_bytes_ && needed.device_bytes <= agreed_device_bytes_))
      return;
    // Doubling bounds the outgrown memory by the memory in use.
    const uint64_t asked = needed.host_bytes;
    needed.host_bytes = std::max(needed.host_bytes, 2 * agreed_host_bytes_);
    needed.device_bytes = std::max(needed.device_bytes, 2 * agreed_device_bytes_);
    std::string why;
    {
      const CudaScope scope(exchange_.context());
      try {
        staging_.make_room(needed);
      } catch (const Error& error) {
        why = error.what();
      }
    }
    const std::vector<std::string> answers = exchange_.allgather(why);
    for (size_t other = 0; other < answers.size(); ++other) {
      if (answers[other].empty()) continue;
      if (enough && rank() == 0)
        log(LogLevel::warning, "tensors of ", r.count * size_of(dtype),
            " bytes or more are left to NCCL; rank ", other, ": ", answers[other]);
      enough = false;
    }
    if (enough) {
      agreed_host_bytes_ = needed.host_bytes;
      agreed_device_bytes_ = needed.device_bytes;
    } else {
      lacking_bytes_ = asked;
    }
  });
  return enough;
}

// out = the sum of in / divisor. Returns the set; it is in use until its event has been recorded.
std::shared_ptr<StagingSet> NcclGroup::stream_part(CuAddress in, CuAddress out, uint64_t count,
                                                   DType dtype, int divisor,
                                                   const NcclReduction& r) {
  const CudaDriver& driver = cuda();
  const auto levels = std::atomic_load(&levels_);
  if (!levels) throw Error("a sum on this communicator has failed");
  const StagingLayout where = layout_of(r, dtype);
  const Staging::Use use = staging_.acquire(where, r.stream);
  const std::shared_ptr<StagingSet> set = use.set;
  const CuAddress host = set->host.address();
  const CuAddress counters = set->device.address() + where.device_counters;
  const GpuKernels& kernels = terms_.kernels().of(dtype);
  if (divisor != 1) {
    kernels.scale(in, out, count, 1.0 / divisor, r.stream);
    in = out;
  }
  const bool in_place = in == out;

  check_cuda(driver.memset_d8_async(counters, 0, where.counters_bytes, r.stream),
             "cuMemsetD8Async");
  kernels.compact(
      in, count, kernels::kPack | (in_place ? uint32_t(kernels::kClearNegativeZeros) : 0), counters,
      counters + where.bitmap, host + where.in_records, host + where.in_data, r.stream);
  check_cuda(driver.memcpy_dtoh_async(set->at<uint8_t>(where.counters), counters,
                                      where.counters_bytes, r.stream),
             "cuMemcpyDtoHAsync");
  if (!in_place)
    check_cuda(driver.memset_d8_async(out, 0, count * size_of(dtype), r.stream), "cuMemsetD8Async");

  auto staged = std::make_shared<StagedCollective>(use, where);
  auto call = std::make_unique<Call>(
      Call{shared_from_this(), levels->collective(staged), staged, r.count * size_of(dtype)});
  check_cuda(driver.launch_host_func(r.stream, &Call::begin, call.get()), "cuLaunchHostFunc");
  static_cast<void>(call.release());  // begin() has it now
  check_cuda(driver.stream_wait_value32(r.stream, host + offsetof(StagingHead, flag), use.number,
                                        kCuWaitGreaterOrEqual),
             "cuStreamWaitValue32");
  kernels.scatter(out, count, host + where.out_records, host + offsetof(StagingHead, out_count),
                  host + where.out_data, r.stream);
  return set;
}

// Whether each rank of a host has a part of each tensor.
bool NcclGroup::parts() const { return grid_ && !compresses_first(); }

// How many elements a rank streams. Parts are equal and begin where kernels are fastest. If such
// parts do not cover the tensor, NCCL sums the remaining elements.
uint64_t NcclGroup::part_of(uint64_t count, size_t width) const {
  if (!parts()) return count;
  const uint64_t local_size = grid_->local_size(), unit = terms_.settings().block_size;
  const uint64_t part = count / local_size;
  return part * local_size == count && part * width % 16 == 0 ? part : part / unit * unit;
}

void NcclGroup::two_levels(const NcclReduction& r, DType dtype) {
  const size_t width = size_of(dtype);
  const uint64_t part = part_of(r.count, width);
  const auto check = [this] {  // an abort, which waits only briefly, frees NCCL's communicators
    if (aborted_) throw Error("the communicator was aborted");
  };
  check();
  if (part == 0) {
    settle(nccl().all_reduce(r.in, r.out, r.count, r.type, r.op, comm_, r.stream), comm_, aborted_,
           "ncclAllReduce");
    return;
  }
  char* const mine = static_cast<char*>(r.out) + grid_->local_index() * part * width;
  settle(nccl().reduce_scatter(r.in, mine, part, r.type, r.op, grid_->host(), r.stream),
         grid_->host(), aborted_, "ncclReduceScatter inside the host");
  const CuAddress address = reinterpret_cast<CuAddress>(mine);
  const int hosts = static_cast<int>(grid_->across().size());
  const auto set = stream_part(address, address, part, dtype, r.op == NcclOp::avg ? hosts : 1, r);
  check();
  gather_parts(r, part, width, *set);
  check_cuda(cuda().event_record(set->free, r.stream), "cuEventRecord");
}

// Gathers the parts of the host's ranks, and whether each is right, so that a rank with a right
// part learns of failures in others. NCCL sums the elements behind the parts.
void NcclGroup::gather_parts(const NcclReduction& r, uint64_t part, size_t width,
                             const StagingSet& set) {
  const CuAddress statuses = set.device.address();
  const CuAddress my_status = statuses + grid_->local_index() * sizeof(int32_t);
  const uint64_t gathered = part * grid_->local_size();
  const auto* const in = static_cast<const char*>(r.in);
  auto* const out = static_cast<char*>(r.out);
  check_cuda(cuda().memcpy_htod_async(my_status, &set.head().status, sizeof(int32_t), r.stream),
             "cuMemcpyHtoDAsync");
  NcclResult failed = NcclResult::success;
  const auto queue = [&failed](NcclResult result) {
    if (result != NcclResult::success && result != NcclResult::in_progress) failed = result;
  };
  check_nccl(nccl().group_start(), "ncclGroupStart");
  queue(nccl().all_gather(out + grid_->local_index() * part * width, out, part, r.type,
                          grid_->host(), r.stream));
  queue(nccl().all_gather(reinterpret_cast<void*>(my_status), reinterpret_cast<void*>(statuses), 1,
                          NcclType::int32, grid_->host(), r.stream));
  if (gathered < r.count)
    queue(nccl().all_reduce(in + gathered * width, out + gathered * width, r.count - gathered,
                            r.type, r.op, comm_, r.stream));
  const NcclResult ended = nccl().group_end();
  check_nccl(failed, "ncclAllGather inside the host");
  settle(ended, grid_->host(), aborted_, "ncclAllGather inside the host");
  if (gathered < r.count) settle(ended, comm_, aborted_, "ncclAllReduce");
  check_cuda(cuda().memcpy_dtoh_async(set.statuses(), statuses,
                                      grid_->local_size() * sizeof(int32_t), r.stream),
             "cuMemcpyDtoHAsync");
}

}  // namespace omnihvd
