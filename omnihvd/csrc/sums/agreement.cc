#include "sums/agreement.h"

#include "base/bytes.h"
#include "base/error.h"
#include "session/group_info.h"

namespace omnihvd {
namespace {

constexpr char kVersion[] = "omnihvd-ranks-2";

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
  out.u64(settings_.enable);
  out.text(pack_agreed(settings_));
  out.text(word);
  return out.bytes();
}

Agreement Greeting::read(const std::vector<std::string>& greetings) const {
  Agreement agreed;
  agreed.settings = settings_;
  const std::string version = BytesReader(greetings[0]).text();
  for (size_t rank = 0; rank < greetings.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    BytesReader in(greetings[rank]);
    if (const std::string theirs = in.text(); theirs != version)
      throw Error(who + " uses another version of omnihvd than rank 0 (" + theirs + ", not " +
                  version + "): install the same one on all hosts");
    if (const std::string why = in.text(); !why.empty()) throw Error(who + ": " + why);
    agreed.hosts.push_back(in.text());
    const bool enable = in.u64() != 0;
    const std::string settings = in.text();
    agreed.words.push_back(in.text());
    if (rank > 0) continue;
    agreed.settings.enable = enable;
    unpack_agreed(settings, &agreed.settings);
  }
  return agreed;
}

Agreement agree(Exchange& exchange) {
  const Greeting greeting;
  return greeting.read(exchange.allgather(greeting.with("")));
}

}  // namespace omnihvd
