#include "engine/join.h"

#include <functional>

#include "base/sha256.h"
#include "engine/agreement.h"
#include "engine/rendezvous.h"

namespace omnihvd {
namespace {

std::vector<std::string> exchange_or_throw(Exchange& exchange, const Node& self,
                                           const std::function<std::string()>& content) {
  return contents_of(exchange.allgather(words_of(self, content)));
}

}  // namespace

std::shared_ptr<const GroupInfo> agree_on_group(Exchange& exchange, const Node& self,
                                                const Settings& settings) {
  GroupAgreement agreement(self, settings, uint32_t(exchange.rank()));
  agreement.hear_introductions(
      exchange_or_throw(exchange, self, [&] { return agreement.introduction(); }));
  const auto said = exchange_or_throw(exchange, self, [&] {
    if (exchange.rank() != 0) return std::string();
    GroupInfo& info = agreement.make(random_bytes(8), random_bytes(32));
    add_dedicated_aggregators(settings.aggregators, settings.secret, &info);
    return agreement.decision();
  });
  const auto info = agreement.group_of(said[0]);
  remember_hosts(*info);
  return info;
}

void meet(Exchange& exchange, const Node& self, const std::function<void()>& step) {
  exchange_or_throw(exchange, self, [&] {
    step();
    return std::string();
  });
}

}  // namespace omnihvd
