#include "engine/host_facts.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

namespace omnihvd {
namespace {

constexpr int kNobody = -1;

// Adds the limit that a cgroup's files set: cgroup v2 has one file, v1 has two.
void add_limit(const std::string& folder, double* limit) {
  double quota = 0, period = 0;
  std::ifstream both(folder + "/cpu.max");  // "max 100000": no limit
  if (!(both >> quota >> period)) {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // -1: no limit
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return;
  *limit = *limit > 0 ? std::min(*limit, quota / period) : quota / period;
}

// The limits of this process's cgroup and of all above it. Lines: "number:controllers:path".
double cgroup_limit(const std::string& root) {
  double limit = 0;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    std::string number, controllers, path;
    std::istringstream parts(line);
    std::getline(std::getline(std::getline(parts, number, ':'), controllers, ':'), path);
    const bool v1 = ("," + controllers + ",").find(",cpu,") != std::string::npos;
    if (!v1 && !controllers.empty()) continue;
    const std::string mounted = root + "/sys/fs/cgroup" + (v1 ? "/cpu" : "");
    for (; !path.empty(); path.resize(path.rfind('/'))) add_limit(mounted + path, &limit);
    add_limit(mounted, &limit);  // in a container, the container's
  }
  return limit;
}

// Gives a rank a core, and the ranks that must then yield theirs other cores.
bool give_core(const std::vector<Cores>& ranks, size_t rank, std::vector<int>* owners,
               std::vector<bool>* tried) {
  for (size_t core = 0; core < owners->size(); ++core) {
    if (!CPU_ISSET(core, &ranks[rank].allowed) || (*tried)[core]) continue;
    (*tried)[core] = true;
    int& owner = (*owners)[core];
    if (owner != kNobody && !give_core(ranks, size_t(owner), owners, tried)) continue;
    owner = int(rank);
    return true;
  }
  return false;
}

}  // namespace

Cores cores_of_this_thread(const std::string& root) {
  Cores cores;
  if (sched_getaffinity(0, sizeof cores.allowed, &cores.allowed) != 0) CPU_ZERO(&cores.allowed);
  cores.limit = cgroup_limit(root);
  return cores;
}

bool has_core_each(const std::vector<Cores>& ranks) {
  std::vector<int> owners(CPU_SETSIZE, kNobody);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<bool> tried(CPU_SETSIZE);
    const double limit = ranks[rank].limit;
    if ((limit > 0 && limit < double(ranks.size())) || !give_core(ranks, rank, &owners, &tried))
      return false;
  }
  return true;
}

bool has_core_each(Exchange& exchange) {
  const Cores mine = cores_of_this_thread();
  std::string bytes(sizeof mine, '\0');
  std::memcpy(bytes.data(), &mine, sizeof mine);
  std::vector<Cores> ranks;
  for (const std::string& theirs : exchange.allgather(bytes))
    if (theirs.size() == sizeof mine)
      std::memcpy(&ranks.emplace_back(), theirs.data(), sizeof mine);
  return ranks.size() == size_t(exchange.size()) && has_core_each(ranks);
}

}  // namespace omnihvd
