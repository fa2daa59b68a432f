#include "sums/agreement.h"

#include <mutex>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"

namespace omnihvd {
namespace {

constexpr char kVersion[] = "omnihvd-ranks-3";

void warn_once(const std::string& text) {
  static std::mutex mutex;
  static auto* said = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (said->insert(text).second) log(LogLevel::warning, text);
}

}  // namespace

Greeting::Greeting() {
  try {
    settings_ = settings_from_environment();
  } catch (const Error& error) {  // the others must learn it, or they would wait for this rank
    problem_ = error.what();
  }
}

std::string Greeting::with(const std::string& word) const {
  BytesWriter out;
  out.text(kVersion);
  out.text(problem_);
  out.text(host_name(settings_));
  out.text(pack_agreed(settings_));
  out.text(word);
  return out.bytes();
}

Agreement Greeting::read(const std::vector<std::string>& greetings, int own_rank) const {
  Agreement agreed;
  agreed.settings = settings_;
  std::vector<std::string> settings, ranks;
  const std::string version = BytesReader(greetings[0]).text();
  for (size_t rank = 0; rank < greetings.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    BytesReader in(greetings[rank]);
    if (const std::string theirs = in.text(); theirs != version)
      throw Error(who + " uses another version of omnihvd than rank 0 (" + theirs + ", not " +
                  version + "): install the same one on all hosts");
    if (const std::string why = in.text(); !why.empty()) throw Error(who + ": " + why);
    agreed.hosts.push_back(in.text());
    ranks.push_back(who + " (" + agreed.hosts.back() + ")");
    settings.push_back(in.text());
    agreed.words.push_back(in.text());
  }
  for (const std::string& difference : agree_on_settings(settings, ranks, &agreed.settings))
    if (own_rank == 0) warn_once(difference);
  return agreed;
}

Agreement agree(Exchange& exchange) {
  const Greeting greeting;
  return greeting.read(exchange.allgather(greeting.with("")), exchange.rank());
}

}  // namespace omnihvd
