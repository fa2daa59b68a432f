// MPI_Allreduce, taken over: sums that the engine knows go to it, all else to MPI untouched.
//
// MPI_Allreduce is for any MPI program (LD_PRELOAD, or loaded first): failures go to the
// communicator's error handler. omnihvd_MPI_Allreduce is for Horovod, by the GOT hook: failures
// are returned only, and Horovod raises HorovodInternalError.
//
// Every decision depends on arguments alone that MPI wants equal on all ranks, and on rank 0's
// settings, so all ranks decide alike. The reasons to leave a call to MPI, as they are counted:
// invalid, empty, inter-communicator, one rank, device memory, op, dtype, disabled, small, large;
// and control: bitwise operations, by which Horovod's ranks agree on what to reduce next.
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "hook/polite_yield.h"
#include "session/stats.h"
#include "session/while_waiting.h"
#include "shims/mpi/device_memory.h"
#include "shims/mpi/exchange.h"
#include "shims/mpi/group.h"
#include "shims/mpi/types.h"
#include "shims/mpi/world.h"
#include "sums/coded_buffer.h"

#define OMNIHVD_EXPORT extern "C" __attribute__((visibility("default")))

namespace omnihvd {
namespace {

// MPI_Finalize waits for all ranks, and one that a failed sum has waited for may never come.
std::atomic<bool> finalized{false};

void end_the_job_after(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  if (finalized) return;
  log(LogLevel::error, "ends the job: after a failed allreduce, MPI_Finalize has waited ", seconds,
      " s for other ranks (OMNIHVD_TIMEOUT)");
  std::_Exit(1);
}

// MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF, while MPI still works.
int on_finalize(MPI_Comm, int, void*, void*) {
  MpiGroup::leave_all();
  stop_process_engine();
  log_summary("MPI");
  if (!MpiGroup::left_behind().empty()) {
    // This is Horovod's end after an error, and MPI_Finalize would wait for a rank that waits for
    // this one: the job would hang, with its error long written.
    std::this_thread::sleep_for(std::chrono::seconds(1));  // until all have written theirs
    log(LogLevel::error, "ends the job (MPI_Abort), since ", MpiGroup::left_behind(),
        " would never end");
    PMPI_Abort(MPI_COMM_WORLD, 1);
  }
  return MPI_SUCCESS;
}

void prepare_once() {
  static const bool prepared = [] {
    int keyval = MPI_KEYVAL_INVALID;
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &on_finalize, &keyval, nullptr);
    PMPI_Comm_set_attr(MPI_COMM_SELF, keyval, nullptr);
    set_up_log();
    return true;
  }();
  (void)prepared;
}

uint64_t bytes_of(int64_t count, MPI_Datatype type) {
  int size = 0;
  if (count <= 0 || type == MPI_DATATYPE_NULL || PMPI_Type_size(type, &size) != MPI_SUCCESS)
    return 0;
  return static_cast<uint64_t>(count) * static_cast<uint64_t>(size);
}

// Of the tensors in a buffer of int32; empty: it holds none under a codec. Throws Error.
std::string codecs_of(const MpiReduction& r, uint64_t bytes) {
  const void* const in = r.in == MPI_IN_PLACE ? r.out : r.in;
  if (r.dtype != DType::i32 || !CodedBuffer::begins(in, bytes)) return "";
  return CodedBuffer(const_cast<void*>(in), bytes).codecs();
}

// Tensors under codecs learn that they are the sum.
bool sum_of_one(const MpiReduction& r, uint64_t bytes) {
  const void* const in = r.in == MPI_IN_PLACE ? r.out : r.in;
  if (r.op != MPI_SUM || recognise_sum(r.type, r.op).dtype != DType::i32 ||
      !CodedBuffer::begins(in, bytes))
    return false;
  if (in != r.out) std::memcpy(r.out, in, bytes);
  CodedBuffer(r.out, bytes).mark_summed();
  return true;
}

// A program's own messages may wait for this rank to be in MPI, which it is not while it sleeps.
void let_mpi_work() {
  static const MPI_Comm nobodys = [] {  // a message that is found would end the looking
    MPI_Comm comm = MPI_COMM_SELF;
    PMPI_Comm_dup(MPI_COMM_SELF, &comm);
    return comm;
  }();
  int found = 0;
  PMPI_Iprobe(0, 0, nobodys, &found, MPI_STATUS_IGNORE);
}

// Reduces and returns null, or returns why the call is left to MPI. Throws Error.
const char* reduce(MpiReduction r, uint64_t bytes, MPI_Comm comm, Caller caller) {
  if (comm == MPI_COMM_NULL || r.count < 0) return "invalid";
  if (r.count == 0) return "empty";
  if (r.in == nullptr || r.out == nullptr) return "invalid";
  int is_inter = 0, size = 0;
  check_mpi(PMPI_Comm_test_inter(comm, &is_inter), "MPI_Comm_test_inter");
  if (is_inter) return "inter-communicator";
  check_mpi(PMPI_Comm_size(comm, &size), "MPI_Comm_size");
  if (size < 2) return sum_of_one(r, bytes) ? nullptr : "one rank";
  if (const MpiGroup* group = MpiGroup::find(comm)) group->check();
  if ((r.in != MPI_IN_PLACE && in_device_memory(r.in)) || in_device_memory(r.out))
    return "device memory";
  const MpiSum sum = recognise_sum(r.type, r.op);
  if (!sum.dtype) return sum.refusal;
  r.dtype = *sum.dtype;
  if (r.in == r.out) r.in = MPI_IN_PLACE;
  r.codecs = codecs_of(r, bytes);
  MpiGroup& group = MpiGroup::of(comm, caller);
  if (const char* refusal = group.refusal(r, bytes)) return refusal;
  const auto begun = std::chrono::steady_clock::now();
  const SumUnderWay under_way;
  const WhileWaiting waiting(caller == Caller::program ? &let_mpi_work : nullptr);
  const Way way = group.allreduce(r);
  count_way(way, bytes, begun);
  return nullptr;
}

int allreduce(const MpiReduction& r, MPI_Comm comm, Caller caller) noexcept {
  prepare_once();
  try {
    const uint64_t bytes = bytes_of(r.count, r.type);
    const char* const reason = reduce(r, bytes, comm, caller);
    if (reason == nullptr) return MPI_SUCCESS;
    count_pass(reason, bytes);
    const MpiGroup::Elsewhere elsewhere(comm, bytes, reason);
    return PMPI_Allreduce(r.in, r.out, r.count, r.type, r.op, comm);
  } catch (const Error& error) {
    log(LogLevel::error, "MPI_Allreduce failed: ", error.what());
    if (caller == Caller::program) PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
  }
}

}  // namespace
}  // namespace omnihvd

OMNIHVD_EXPORT int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                                 MPI_Comm comm) {
  return omnihvd::allreduce({in, out, count, type, op, {}, {}}, comm, omnihvd::Caller::program);
}

OMNIHVD_EXPORT int MPI_Finalize() {
  using namespace omnihvd;
  if (const double limit = MpiGroup::limit_after_failure())
    std::thread(end_the_job_after, limit).detach();
  const int code = PMPI_Finalize();
  finalized = true;
  return code;
}

OMNIHVD_EXPORT int omnihvd_MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type,
                                         MPI_Op op, MPI_Comm comm) {
  return omnihvd::allreduce({in, out, count, type, op, {}, {}}, comm, omnihvd::Caller::horovod);
}

#if MPI_VERSION >= 4
OMNIHVD_EXPORT int MPI_Allreduce_c(const void* in, void* out, MPI_Count count, MPI_Datatype type,
                                   MPI_Op op, MPI_Comm comm) {
  if (count <= INT_MAX)
    return omnihvd::allreduce({in, out, static_cast<int>(count), type, op, {}, {}}, comm,
                              omnihvd::Caller::program);
  omnihvd::count_pass("large", omnihvd::bytes_of(count, type));
  return PMPI_Allreduce_c(in, out, count, type, op, comm);
}
#endif
