#include "communicator/meeting.h"

#include <sched.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>

#include "algorithms/waiting.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "protocol/wire.h"

namespace omnihvd {
namespace {

// Ranks need the same protocol, which is the first word. The release is only for the reader of the
// error.
std::string version() {
  return "omnihvd-ranks-" + std::to_string(kWireVersion) + " of omnihvd " OMNIHVD_RELEASE;
}
std::string version_in(const std::string& greeting) {
  try {
    return BytesReader(greeting).text();
  } catch (const Error&) {  // over MPI, 0.2.0 begins with the version, without a length
    return greeting.substr(0, greeting.find(' '));
  }
}
std::string protocol_of(const std::string& version) { return version.substr(0, version.find(' ')); }

// Called before anything else in a greeting is read.
void check_versions(const std::vector<std::string>& greetings) {
  const std::string first = version_in(greetings[0]);
  for (size_t rank = 1; rank < greetings.size(); ++rank)
    if (const std::string theirs = version_in(greetings[rank]);
        protocol_of(theirs) != protocol_of(first))
      throw Error("rank " + std::to_string(rank) +
                  " uses another version of omnihvd than rank 0 (" + theirs + ", not " + first +
                  "): install the same one on all hosts");
}

constexpr double kAsSumsDo = -1;  // OMNIHVD_STALL_WARNING
constexpr double kWarning = kJoinWarning.seconds;

struct Row {
  MeetingPlace place;
  double warning_s;
  double limit_s;  // unless OMNIHVD_JOIN_TIMEOUT is set
  bool in_a_sum;   // OMNIHVD_TIMEOUT bounds the wait
};
constexpr Row kPlaces[] = {
    {MeetingPlace::mpi_init, kWarning, kJoinRoll.seconds, false},
    {MeetingPlace::roll_of_horovod, kWarning, kJoinRoll.seconds, true},
    {MeetingPlace::roll_of_program, kWarning, kJoinProgram.seconds, true},
    {MeetingPlace::first_sum_of_horovod, kAsSumsDo, kJoin.seconds, true},
    {MeetingPlace::first_sum_of_program, kAsSumsDo, kJoinProgram.seconds, true},
    {MeetingPlace::process_group, kWarning, kJoin.seconds, false},
    {MeetingPlace::check, 0, kJoinCheck.seconds, false},
};

void warn_once(const std::string& text) {
  static std::mutex mutex;
  static auto* said = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (said->insert(text).second) log(LogLevel::warning, text);
}

}  // namespace

Patience patience_at(MeetingPlace place, const Settings& s) {
  const Row& row = kPlaces[static_cast<size_t>(place)];
  double limit_s = s.join_timeout_s.value_or(row.limit_s);
  // MPI_Init waits no longer than this, and a sum no longer than any other sum.
  const double most_s = place == MeetingPlace::mpi_init ? row.limit_s
                        : row.in_a_sum                  ? s.timeout_s
                                                        : 0;
  if (most_s > 0) limit_s = limit_s > 0 ? std::min(limit_s, most_s) : most_s;
  return {row.warning_s == kAsSumsDo ? s.stall_warning_s : row.warning_s, limit_s};
}

void Waiting::pause_after(double waited_s) {
  if (waited_s < 1e-3)
    sched_yield();
  else
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Greeting::Greeting() {
  try {
    settings_ = settings_from_environment();
    set_log_level(settings_.log);  // sums over shared memory create no engine to do it
  } catch (const Error& error) {   // the others must learn it, or they would wait for this rank
    problem_ = error.what();
  }
}

std::string Greeting::with(const std::string& word) const {
  BytesWriter out;
  out.text(version());
  out.text(problem_);
  out.text(host_name(settings_));
  out.text(pack_agreed(settings_));
  out.text(word);
  return out.bytes();
}

Agreement Greeting::read(const std::vector<std::string>& greetings, int own_rank) const {
  check_versions(greetings);
  Agreement agreed;
  agreed.settings = settings_;
  std::vector<std::string> settings, ranks;
  for (size_t rank = 0; rank < greetings.size(); ++rank) {
    BytesReader in(greetings[rank]);
    static_cast<void>(in.text());
    if (const std::string why = in.text(); !why.empty())
      throw Error("rank " + std::to_string(rank) + ": " + why);
    agreed.hosts.push_back(in.text());
    ranks.push_back(rank_name(rank, agreed.hosts.back()));
    settings.push_back(in.text());
    agreed.words.push_back(in.text());
  }
  for (const std::string& difference : agree_on_settings(settings, ranks, &agreed.settings))
    if (own_rank == 0) warn_once(difference);
  return agreed;
}

void check_same(const std::vector<std::string>& sums, const std::vector<std::string>& hosts) {
  for (size_t rank = 1; rank < sums.size(); ++rank)
    if (sums[rank] != sums[0])
      throw Error(
          differ_text(rank_name(rank, hosts[rank]), sums[rank], rank_name(0, hosts[0]), sums[0]));
}

}  // namespace omnihvd
