#include "shims/one_host.h"

#include <algorithm>

#include "base/log.h"

namespace omnihvd {

std::unique_ptr<SharedSum> shared_sum_of(Exchange& exchange, const Settings& agreed,
                                         const std::vector<std::string>& hosts) {
  const bool one_host = std::equal(hosts.begin() + 1, hosts.end(), hosts.begin());
  if (agreed.way == WaySetting::stream || !one_host || hosts.size() < 2) return nullptr;
  std::string obstacle;
  auto sum = SharedSum::create(exchange, agreed, hosts[0], &obstacle);
  if (!sum && exchange.rank() == 0)
    log(agreed.way == WaySetting::shared ? LogLevel::warning : LogLevel::info,
        "the ranks of a communicator, all on ", hosts[0],
        ", send messages instead of using shared memory: ", obstacle);
  return sum;
}

}  // namespace omnihvd
