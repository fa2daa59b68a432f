#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/host_grid.h"
#include "base/error.h"
#include "base/plugin.h"
#include "engine/on_all_ranks.h"
#include "protocol/seats.h"

namespace omnihvd {
namespace {

struct Row {
  std::string name;
  MakeAlgorithm make;  // empty: its library registers it
};

// In order of preference. The plugin's row is the first, if there is one.
std::vector<Row>& rows() {
  static auto* const all = new std::vector<Row>{{"inline", {}},
                                                {"shared", make_shared_memory},
                                                {"two levels", make_two_levels},
                                                {"stream", make_streamed}};
  return *all;
}

}  // namespace

void register_algorithm(const std::string& name, MakeAlgorithm make) {
  for (Row& row : rows())
    if (row.name == name) {
      if (row.make) throw Error("the name '" + name + "' is taken: give the algorithm another");
      row.make = std::move(make);
      return;
    }
  if (!plugin_way().empty())
    throw Error("one process takes one plugin's algorithm, and has '" + plugin_way() +
                "': name one in OMNIHVD_PLUGIN");
  plugin_way() = name;
  rows().insert(rows().begin(), Row{name, std::move(make)});
}

std::unique_ptr<Algorithm> make_algorithm(Exchange& exchange, const Settings& agreed,
                                          const std::vector<std::string>& hosts) {
  if (!agreed.inline_at.empty()) start_on_all_ranks(exchange, [] { load_part("innetwork"); });
  for (const Row& row : rows()) {
    if (row.name == plugin_way() && agreed.way != Way::plugin) continue;
    if (row.name == "inline" && agreed.inline_at.empty()) continue;
    if (auto made = row.make(exchange, agreed, hosts)) return made;
  }
  OMNIHVD_INVARIANT(!"streaming fits each job");
  return nullptr;
}

bool can_scatter(const Settings& agreed, const std::vector<std::string>& hosts) {
  if (!agreed.aggregators.empty()) return false;
  const bool grid = agreed.hierarchy != Hierarchy::off && !grid_obstacle(hosts);
  try {
    return !grid && fans_of(agreed.levels, uint32_t(hosts.size()), 0).size() == 1;
  } catch (const Error&) {  // an allreduce reports it
    return false;
  }
}

}  // namespace omnihvd
