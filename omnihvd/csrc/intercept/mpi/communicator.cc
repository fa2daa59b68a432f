#include "intercept/mpi/communicator.h"

#include <atomic>
#include <mutex>
#include <set>

namespace omnihvd {
namespace {

std::atomic<bool> left{false};
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

}  // namespace

MpiCommunicator* MpiCommunicator::find(MPI_Comm comm) {
  void* communicator = nullptr;
  int found = 0;
  check_mpi(PMPI_Comm_get_attr(comm, keyval(), &communicator, &found), "MPI_Comm_get_attr");
  return found ? static_cast<MpiCommunicator*>(communicator) : nullptr;
}

MpiCommunicator& MpiCommunicator::of(MPI_Comm comm, Caller caller) {
  if (MpiCommunicator* const known = find(comm)) return *known;
  auto* const communicator = new MpiCommunicator(comm, caller);
  check_mpi(PMPI_Comm_set_attr(comm, keyval(), communicator), "MPI_Comm_set_attr");
  const std::lock_guard<std::mutex> lock(mutex);
  live().insert(communicator);
  return *communicator;
}

bool MpiCommunicator::all_left() { return left; }

void MpiCommunicator::leave_all() {
  left = true;
  std::set<MpiCommunicator*> all;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    all.swap(live());
  }
  for (MpiCommunicator* communicator : all) delete communicator;  // MPI_Finalize frees theirs
}

}  // namespace omnihvd
