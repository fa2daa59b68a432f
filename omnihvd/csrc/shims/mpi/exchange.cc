#include "shims/mpi/exchange.h"

#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "shims/mpi/roll_call.h"

namespace omnihvd {
namespace {

constexpr int kNothing = -1;

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

MpiExchange::MpiExchange(MPI_Comm comm, const Patience& patience)
    : comm_(comm), patience_(patience) {
  check_mpi(PMPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  check_mpi(PMPI_Comm_size(comm, &size_), "MPI_Comm_size");
}

std::vector<std::string> MpiExchange::allgather(const std::string& mine) {
  auto buffers = std::make_unique<Buffers>();
  Buffers& b = *buffers;
  b.mine = mine;
  b.length = static_cast<int>(mine.size());
  b.lengths.assign(size_, kNothing);
  MPI_Request request = MPI_REQUEST_NULL;
  try {
    check_mpi(PMPI_Iallgather(&b.length, 1, MPI_INT, b.lengths.data(), 1, MPI_INT, comm_, &request),
              "MPI_Iallgather");
    // MPI writes each rank's length when it comes, so that those that have not can be named.
    wait(request, [&] {
      std::vector<int> missing;
      for (int rank = 0; rank < size_; ++rank)
        if (rank != rank_ && static_cast<volatile int&>(b.lengths[rank]) == kNothing)
          missing.push_back(rank);
      return missing;
    });
    b.offsets.resize(size_);
    std::exclusive_scan(b.lengths.begin(), b.lengths.end(), b.offsets.begin(), 0);
    b.all.resize(b.offsets.back() + b.lengths.back());
    check_mpi(PMPI_Iallgatherv(b.mine.data(), b.length, MPI_BYTE, b.all.data(), b.lengths.data(),
                               b.offsets.data(), MPI_BYTE, comm_, &request),
              "MPI_Iallgatherv");
    wait(request, [] { return std::vector<int>(); });
  } catch (const Error&) {
    buffers.release();
    throw;
  }
  std::vector<std::string> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(b.all.substr(b.offsets[r], b.lengths[r]));
  return parts;
}

void MpiExchange::wait(MPI_Request request,
                       const std::function<std::vector<int>()>& missing) const {
  Waiting waiting(patience_, patience_.warning_s);
  const auto message = [&] {
    const std::vector<int> ranks = missing();
    return "waited " + std::to_string(static_cast<long>(waiting.seconds())) + " s for " +
           (ranks.empty() ? "another rank" : names_of(ranks, comm_)) + " of " +
           std::to_string(size_) +
           " on a communicator to begin the allreduce in which all are connected: late, stopped, "
           "ended, or in a call that is left to MPI";
  };
  for (int done = 0;;) {
    check_mpi(PMPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) return;
    if (waiting.over()) throw Error(message() + " (OMNIHVD_JOIN_TIMEOUT allows more time)");
    if (waiting.warn()) log(LogLevel::warning, message());
    waiting.pause();
  }
}

}  // namespace omnihvd
