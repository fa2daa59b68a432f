#include "intercept/mpi/exchange.h"

#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "intercept/mpi/roll_call.h"
#include "intercept/mpi/world.h"

namespace omnihvd {
namespace {

constexpr int kNothing = -1;

// Lives as long as MPI may write to it: for good, if a rank never comes (a collective cannot be
// cancelled).
struct Buffers {
  int length = 0;
  std::string mine;
  std::vector<int> lengths, offsets;
  std::string all;
};

std::string& those_left_behind() {
  static auto& who = *new std::string;
  return who;
}

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  PMPI_Error_string(code, text, &length);
  throw Error(std::string(what) + " failed: " + text);
}

MpiExchange::MpiExchange(MPI_Comm comm, Caller caller) : comm_(comm), caller_(caller) {
  check_mpi(PMPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  check_mpi(PMPI_Comm_size(comm, &size_), "MPI_Comm_size");
}

const std::string& MpiExchange::left_behind() { return those_left_behind(); }

void MpiExchange::wait_as(const Settings& settings) {
  const bool horovod = caller_ == Caller::horovod;
  patience_ = patience_at(
      horovod ? MeetingPlace::first_sum_of_horovod : MeetingPlace::first_sum_of_program, settings);
  if (!std::exchange(all_are_here_, true)) call_the_roll(settings);
}

void MpiExchange::call_the_roll(const Settings& settings) const {
  const bool horovod = caller_ == Caller::horovod;
  if (const auto known = known_to_be_without(comm_)) {
    if (known->empty()) return;
    throw Error(names_of(*known, comm_) +
                " runs without omnihvd, so that no rank can use it: preload libomnihvd_mpi.so on "
                "every rank (mpirun -x LD_PRELOAD), of the same version");
  }
  const Patience patience = patience_at(
      horovod ? MeetingPlace::roll_of_horovod : MeetingPlace::roll_of_program, settings);
  const std::vector<int> missing = missing_ranks(comm_, patience);
  if (missing.empty()) return;
  std::ostringstream text;
  text << names_of(missing, comm_)
       << " did not come to the first allreduce on a communicator within " << patience.limit_s
       << " s. It runs without omnihvd (import omnihvd on every rank before hvd.init(); "
          "OMNIHVD_ENABLE=0, a build without MPI and another version count as without), or it was "
          "stopped or has ended: its own output says why. OMNIHVD_JOIN_TIMEOUT allows more time";
  if (horovod) those_left_behind() = names_of(missing, comm_);
  throw Error(text.str());
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
    // MPI writes each rank's length when the rank comes, so missing ranks can be named.
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
