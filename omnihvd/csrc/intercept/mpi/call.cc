#include "intercept/mpi/call.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "algorithms/library.h"
#include "base/log.h"
#include "communicator/communicator.h"
#include "engine/stats.h"
#include "engine/while_waiting.h"
#include "intercept/mpi/device_memory.h"
#include "intercept/mpi/types.h"
#include "intercept/mpi/world.h"

namespace omnihvd {
namespace {

// omnihvd's state for an MPI communicator, stored as an attribute of it.
struct MpiCommunicator {
  MpiCommunicator(MPI_Comm comm, Caller caller) : exchange(comm, caller), sums(exchange.size()) {}

  MpiExchange exchange;
  Communicator sums;
};

std::atomic<bool> all_left{false};
std::mutex mutex;  // guards live()
std::set<MpiCommunicator*>& live() {
  static auto& all = *new std::set<MpiCommunicator*>;  // outlives all static destructors
  return all;
}

int on_comm_free(MPI_Comm, int, void* attribute, void*) {
  auto* const communicator = static_cast<MpiCommunicator*>(attribute);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (live().erase(communicator) == 0) return MPI_SUCCESS;  // left: MPI is being finalized
  }
  delete communicator;
  return MPI_SUCCESS;
}

int keyval() {
  static const int created = [] {
    int key = MPI_KEYVAL_INVALID;
    check_mpi(PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &on_comm_free, &key, nullptr),
              "MPI_Comm_create_keyval");
    return key;
  }();
  return created;
}

// Null: there has been no call.
MpiCommunicator* known_communicator(MPI_Comm comm) {
  void* communicator = nullptr;
  int found = 0;
  check_mpi(PMPI_Comm_get_attr(comm, keyval(), &communicator, &found), "MPI_Comm_get_attr");
  return found ? static_cast<MpiCommunicator*>(communicator) : nullptr;
}

// Local. Made at the first call; ends when the communicator is freed. A duplicate of the
// communicator has a state of its own.
MpiCommunicator& communicator_of(MPI_Comm comm, Caller caller) {
  if (MpiCommunicator* const known = known_communicator(comm)) return *known;
  auto* const communicator = new MpiCommunicator(comm, caller);
  check_mpi(PMPI_Comm_set_attr(comm, keyval(), communicator), "MPI_Comm_set_attr");
  const std::lock_guard<std::mutex> lock(mutex);
  live().insert(communicator);
  return *communicator;
}

// Leaves all groups. Called before MPI_Finalize ends. A program's own callbacks may sum later.
void leave_all() {
  all_left = true;
  std::set<MpiCommunicator*> all;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    all.swap(live());
  }
  for (MpiCommunicator* communicator : all) delete communicator;  // MPI_Finalize frees theirs
}

// MPI_Finalize waits for all ranks, but a rank for which a failed sum has waited may never come.
std::atomic<bool> finalized{false};
std::atomic<double> limit_of_end{0};  // OMNIHVD_TIMEOUT, once a sum has failed

void end_the_job_after(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  if (finalized) return;
  log(LogLevel::error, "ends the job: after a failed allreduce, MPI_Finalize has waited ", seconds,
      " s for other ranks (OMNIHVD_TIMEOUT)");
  std::_Exit(1);
}

// MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF, while MPI still works.
int on_finalize(MPI_Comm, int, void*, void*) {
  leave_all();
  stop_process_engine();
  log_summary("MPI");
  if (!MpiExchange::left_behind().empty()) {
    // Horovod ends after an error, and MPI_Finalize would wait for a rank that waits for this one:
    // the job would hang long after it wrote its error.
    std::this_thread::sleep_for(std::chrono::seconds(1));  // until all have written theirs
    log(LogLevel::error, "ends the job (MPI_Abort), since ", MpiExchange::left_behind(),
        " would never end");
    PMPI_Abort(MPI_COMM_WORLD, 1);
  }
  return MPI_SUCCESS;
}

void prepare_once() {
  [[maybe_unused]] static const bool prepared = [] {
    int keyval = MPI_KEYVAL_INVALID;
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &on_finalize, &keyval, nullptr);
    PMPI_Comm_set_attr(MPI_COMM_SELF, keyval, nullptr);
    set_up_log();
    return true;
  }();
}

// MPI as the library for the algorithms (algorithms/library.h), for one call. A reduce-scatter is
// always made whole.
class MpiLibrary : public Library {
 public:
  // Both must outlive this object.
  MpiLibrary(const MpiExchange& exchange, const MpiCall& call) : exchange_(exchange), call_(call) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }

  void run(const void* in, void* out, uint64_t count) override {
    if (in == out) in = MPI_IN_PLACE;
    check_mpi(call_.counts ? call_.by_mpi(call_, in, out)
                           : PMPI_Allreduce(in, out, static_cast<int>(count), call_.type, call_.op,
                                            call_.comm),
              call_.name);
  }

  void unite(uint8_t* bits, size_t bytes) override {
    check_mpi(PMPI_Allreduce(MPI_IN_PLACE, bits, static_cast<int>(bytes), MPI_UINT8_T, MPI_BOR,
                             call_.comm),
              "MPI_Allreduce of the blocks' bitmap");
  }

  void tell(void* data, size_t bytes) override {
    check_mpi(PMPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, call_.comm), "MPI_Bcast");
  }

 private:
  const MpiExchange& exchange_;
  const MpiCall& call_;
};

// A rank's part may be in GPU memory while others' are not. Then it is summed in host memory.
Reason take_from_device(Call call, MpiCommunicator& communicator, Library& library) {
  auto& [exchange, sums] = communicator;
  call.on_device = true;
  const uint64_t bytes = call.bytes();
  if (!sums.met() && sums.refusal(bytes) == Reason::none) sums.meet(exchange, &call);
  if (const Reason left = sums.refusal(bytes, call.any_size()); left != Reason::none) return left;
  const uint64_t out_bytes = call.elements_of(exchange.rank()) * size_of(call.dtype);
  const std::unique_ptr<char[]> host(new char[bytes]);
  const std::unique_ptr<char[]> host_share(call.scatters() ? new char[out_bytes] : nullptr);
  copy_device_memory(host.get(), call.in, bytes);
  void* const out = call.out;
  call.in = host.get();
  call.out = call.scatters() ? host_share.get() : host.get();
  const Reason left = sums.take(call, exchange, library);
  if (left == Reason::none) copy_device_memory(out, call.out, out_bytes);
  return left;
}

// A program's own messages may need this rank to be inside MPI, but it is not while it sleeps.
void let_mpi_work() {
  static const MPI_Comm nobodys = [] {  // the probe must find no message: it would stop there
    MPI_Comm comm = MPI_COMM_SELF;
    PMPI_Comm_dup(MPI_COMM_SELF, &comm);
    return comm;
  }();
  int found = 0;
  PMPI_Iprobe(0, 0, nobodys, &found, MPI_STATUS_IGNORE);
}

// Sums, or returns the fallback reason if MPI must make the call. Throws Error.
Reason sum(const MpiCall& a, Caller caller) {
  if (a.comm == MPI_COMM_NULL || a.count < 0) return Reason::invalid;
  if (a.count == 0) return Reason::empty;
  const bool scatters = a.counts != nullptr;  // a rank may get nothing, and have no room for it
  if (a.in == nullptr || (a.out == nullptr && !scatters)) return Reason::invalid;
  int is_inter = 0;
  check_mpi(PMPI_Comm_test_inter(a.comm, &is_inter), "MPI_Comm_test_inter");
  if (is_inter) return Reason::inter_communicator;
  if (const MpiCommunicator* const known = known_communicator(a.comm)) known->sums.check();
  const MpiSum sum = recognise_sum(a.type, a.op);
  if (!sum.dtype) return sum.refusal;
  MpiCommunicator& communicator = communicator_of(a.comm, caller);
  MpiLibrary library(communicator.exchange, a);
  Call call{a.in == MPI_IN_PLACE ? a.out : a.in, a.out, uint64_t(a.count), *sum.dtype};
  call.may_be_coded = caller == Caller::horovod && call.dtype == DType::i32 && !scatters;
  call.op = scatters ? Op::reduce_scatter : Op::allreduce;
  call.shares = &a.shares;
  const bool on_device = in_device_memory(call.in) || in_device_memory(call.out);
  const WhileWaiting waiting(caller == Caller::program ? &let_mpi_work : nullptr,
                             std::chrono::milliseconds(1));
  try {
    return on_device ? take_from_device(call, communicator, library)
                     : communicator.sums.take(call, communicator.exchange, library);
  } catch (const std::exception& why) {
    limit_of_end = communicator.sums.timeout_s();
    communicator.sums.give_up(why);
    throw;
  }
}

}  // namespace

uint64_t bytes_of(int64_t count, MPI_Datatype type) {
  int size = 0;
  if (count <= 0 || type == MPI_DATATYPE_NULL || PMPI_Type_size(type, &size) != MPI_SUCCESS)
    return 0;
  return static_cast<uint64_t>(count) * static_cast<uint64_t>(size);
}

int take_or_leave(const MpiCall& a, Caller caller) noexcept {
  if (all_left) return a.by_mpi(a, a.in, a.out);
  prepare_once();
  try {
    const uint64_t bytes = bytes_of(a.count, a.type);
    const Reason reason = sum(a, caller);
    if (reason == Reason::none) return MPI_SUCCESS;
    count_pass(reason, bytes);
    const MpiCommunicator* const known =
        a.comm == MPI_COMM_NULL ? nullptr : known_communicator(a.comm);
    const Communicator::Elsewhere elsewhere(known ? &known->sums : nullptr, a.what, "MPI", bytes,
                                            reason);
    return a.by_mpi(a, a.in, a.out);
  } catch (const FailedBefore&) {
  } catch (const std::exception& error) {
    log(LogLevel::error, a.name, " failed: ", error.what());
  }
  if (caller == Caller::program) PMPI_Comm_call_errhandler(a.comm, MPI_ERR_OTHER);
  return MPI_ERR_OTHER;
}

}  // namespace omnihvd

OMNIHVD_EXPORT int MPI_Finalize() {
  using namespace omnihvd;
  if (const double limit = limit_of_end.load()) std::thread(end_the_job_after, limit).detach();
  const int code = PMPI_Finalize();
  finalized = true;
  return code;
}
