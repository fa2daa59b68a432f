#include "shims/mpi/exchange.h"

#include <sched.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace omnihvd {
namespace {

// Lives as long as MPI may write to it: for good, when a rank never comes (a collective cannot be
// cancelled).
struct Buffers {
  int length = 0;
  std::string mine;
  std::vector<int> lengths, offsets;
  std::string all;
};

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  PMPI_Error_string(code, text, &length);
  throw Error(std::string(what) + " failed: " + text);
}

MpiExchange::MpiExchange(MPI_Comm comm, const Settings& patience)
    : comm_(comm), stall_warning_s_(patience.stall_warning_s), timeout_s_(patience.timeout_s) {
  check_mpi(PMPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  check_mpi(PMPI_Comm_size(comm, &size_), "MPI_Comm_size");
}

std::vector<std::string> MpiExchange::allgather(const std::string& mine) {
  auto buffers = std::make_unique<Buffers>();
  Buffers& b = *buffers;
  b.mine = mine;
  b.length = static_cast<int>(mine.size());
  b.lengths.resize(size_);
  MPI_Request request = MPI_REQUEST_NULL;
  try {
    check_mpi(PMPI_Iallgather(&b.length, 1, MPI_INT, b.lengths.data(), 1, MPI_INT, comm_, &request),
              "MPI_Iallgather");
    wait(request);
    b.offsets.resize(size_);
    std::exclusive_scan(b.lengths.begin(), b.lengths.end(), b.offsets.begin(), 0);
    b.all.resize(b.offsets.back() + b.lengths.back());
    check_mpi(PMPI_Iallgatherv(b.mine.data(), b.length, MPI_BYTE, b.all.data(), b.lengths.data(),
                               b.offsets.data(), MPI_BYTE, comm_, &request),
              "MPI_Iallgatherv");
    wait(request);
  } catch (const Error&) {
    buffers.release();
    throw;
  }
  std::vector<std::string> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(b.all.substr(b.offsets[r], b.lengths[r]));
  return parts;
}

void MpiExchange::wait(MPI_Request request) const {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double next_warning_s = stall_warning_s_;
  for (int done = 0;;) {
    check_mpi(PMPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) return;
    const double waited_s = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto message = [&] {
      return "waited " + std::to_string(static_cast<long>(waited_s)) + " s for the " +
             std::to_string(size_) +
             " ranks of a communicator to begin their first MPI_Allreduce. Did one fail, or does "
             "one not use omnihvd? (With Horovod, import omnihvd on every rank before hvd.init().)";
    };
    if (timeout_s_ > 0 && waited_s >= timeout_s_) throw Error(message());
    if (stall_warning_s_ > 0 && waited_s >= next_warning_s) {
      log(LogLevel::warning, message());
      next_warning_s += stall_warning_s_;
    }
    // The ranks of a running program come within microseconds; who is late may be long.
    if (waited_s < 1e-3)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace omnihvd
