#include "intercept/mpi/roll_call.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "base/log.h"
#include "intercept/mpi/exchange.h"

namespace omnihvd {
namespace {

constexpr double kWarnAgain = 60;    // seconds
constexpr double kAnswerTakes = 5;   // beyond rank 0's own time-out
constexpr double kSendingTakes = 2;  // to a rank that is there

// The highest tag minus an offset, because others may also choose the very highest.
int reserved_tag() {
  void* highest = nullptr;
  int found = 0;
  check_mpi(PMPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest, &found), "MPI_Comm_get_attr");
  return (found ? *static_cast<int*>(highest) : 32767) - 1789;
}

// Messages are lists of numbers. To rank 0: an empty list ("here"). From rank 0: first an empty
// list ("heard"), then the number of missing ranks, and these ranks.
using Words = std::vector<int>;

class Mail {
 public:
  explicit Mail(MPI_Comm comm) : comm_(comm), tag_(reserved_tag()) {}
  Mail(const Mail&) = delete;

  // Memory that MPI may still read is never freed: a message cannot be recalled.
  ~Mail() {
    const Waiting waiting({0, kSendingTakes}, 0);
    while (!all_sent() && !waiting.over()) waiting.pause();
    for (auto& sent : sent_)
      if (sent->request != MPI_REQUEST_NULL) {
        PMPI_Request_free(&sent->request);
        static_cast<void>(sent.release());
      }
  }

  void send(int rank, Words words) {
    sent_.push_back(std::make_unique<Sent>());
    Sent& sent = *sent_.back();
    sent.words = std::move(words);
    check_mpi(PMPI_Isend(sent.words.data(), static_cast<int>(sent.words.size()), MPI_INT, rank,
                         tag_, comm_, &sent.request),
              "MPI_Isend");
  }

  bool receive(int rank, Words* words) {
    int found = 0, count = 0;
    MPI_Message message;
    MPI_Status status;
    check_mpi(PMPI_Improbe(rank, tag_, comm_, &found, &message, &status), "MPI_Improbe");
    if (!found) return false;
    check_mpi(PMPI_Get_count(&status, MPI_INT, &count), "MPI_Get_count");
    words->resize(std::max(count, 0));
    check_mpi(PMPI_Mrecv(words->data(), count, MPI_INT, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    return true;
  }

 private:
  struct Sent {
    Words words;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  bool all_sent() {
    bool all = true;
    for (auto& sent : sent_) {
      int done = 0;
      all &= PMPI_Test(&sent->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
    }
    return all;
  }

  const MPI_Comm comm_;
  const int tag_;
  std::vector<std::unique_ptr<Sent>> sent_;
};

void warn(const Waiting& waiting, const std::vector<int>& ranks, MPI_Comm comm) {
  log(LogLevel::warning, "waiting for ", static_cast<long>(waiting.seconds()), " s for ",
      names_of(ranks, comm), " to show that it runs omnihvd");
}

std::vector<int> call(MPI_Comm comm, int size, const Patience& patience) {
  Mail mail(comm);
  std::vector<int> missing(size - 1), here;
  std::iota(missing.begin(), missing.end(), 1);
  Waiting waiting(patience, kWarnAgain);
  const auto is_here = [&](int rank) {
    Words nothing;
    if (!mail.receive(rank, &nothing)) return false;
    mail.send(rank, {});
    here.push_back(rank);
    return true;
  };
  while (true) {
    missing.erase(std::remove_if(missing.begin(), missing.end(), is_here), missing.end());
    if (missing.empty() || waiting.over()) break;
    if (waiting.warn()) warn(waiting, missing, comm);
    waiting.pause();
  }
  if (missing.size() > kMostMissing) missing.resize(kMostMissing);
  Words verdict{static_cast<int>(missing.size())};
  verdict.insert(verdict.end(), missing.begin(), missing.end());
  for (const int rank : here) mail.send(rank, verdict);
  return missing;
}

std::vector<int> answer(MPI_Comm comm, const Patience& patience) {
  Mail mail(comm);
  mail.send(0, {});
  Patience more = patience;
  if (more.limit_s > 0) more.limit_s += kAnswerTakes;
  Waiting waiting(patience, kWarnAgain);
  std::optional<Waiting> heard;  // begins when rank 0 knows of this rank
  while (true) {
    Words words;
    if (mail.receive(0, &words)) {
      if (!words.empty()) return {words.begin() + 1, words.end()};
      heard.emplace(more, 0);
    }
    if (heard ? heard->over() : waiting.over()) return {0};
    if (!heard && waiting.warn()) warn(waiting, {0}, comm);
    waiting.pause();
  }
}

}  // namespace

std::vector<int> missing_ranks(MPI_Comm comm, const Patience& patience) {
  int rank = 0, size = 0;
  check_mpi(PMPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(PMPI_Comm_size(comm, &size), "MPI_Comm_size");
  return rank == 0 ? call(comm, size, patience) : answer(comm, patience);
}

std::vector<int> ranks_in_world(MPI_Comm comm) {
  MPI_Group ours, world;
  int size = 0;
  check_mpi(PMPI_Comm_size(comm, &size), "MPI_Comm_size");
  check_mpi(PMPI_Comm_group(comm, &ours), "MPI_Comm_group");
  check_mpi(PMPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  std::vector<int> here(size), there(size);
  std::iota(here.begin(), here.end(), 0);
  const int code = PMPI_Group_translate_ranks(ours, size, here.data(), world, there.data());
  PMPI_Group_free(&ours);
  PMPI_Group_free(&world);
  check_mpi(code, "MPI_Group_translate_ranks");
  return there;
}

std::string names_of(const std::vector<int>& ranks, MPI_Comm comm) {
  const std::vector<int> there = ranks_in_world(comm);
  std::string names, others;
  bool differ = false;
  for (const int rank : ranks) {
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
    others += (others.empty() ? "" : ", ") +
              (there[rank] == MPI_UNDEFINED ? "none" : std::to_string(there[rank]));
    differ |= there[rank] != rank;
  }
  return differ ? names + " (" + others + " in MPI_COMM_WORLD)" : names;
}

}  // namespace omnihvd
