#include "shims/agreement.h"

#include "base/bytes.h"
#include "base/error.h"
#include "session/group_info.h"

namespace omnihvd {
namespace {

constexpr char kGreeting[] = "omnihvd-ranks-1";

}  // namespace

Agreement agree(Exchange& exchange) {
  Agreement agreed;
  Settings& settings = agreed.settings;
  std::string problem;
  try {
    settings = settings_from_environment();
  } catch (const Error& error) {  // the others must learn it, or they would wait for this rank
    problem = error.what();
  }
  BytesWriter out;
  out.text(kGreeting);
  out.text(problem);
  out.text(host_name(settings));
  out.u64(settings.enable);
  out.text(pack_agreed(settings));
  const std::vector<std::string> greetings = exchange.allgather(out.bytes());
  for (size_t rank = 0; rank < greetings.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    BytesReader in(greetings[rank]);
    if (in.text() != kGreeting)
      throw Error(who + " uses another version of omnihvd: install the same one on all hosts");
    if (const std::string why = in.text(); !why.empty()) throw Error(who + ": " + why);
    agreed.hosts.push_back(in.text());
    if (rank > 0) continue;
    settings.enable = in.u64() != 0;
    unpack_agreed(in.text(), &settings);
  }
  return agreed;
}

}  // namespace omnihvd
