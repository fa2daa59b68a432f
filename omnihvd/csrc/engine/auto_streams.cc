#include "engine/auto_streams.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "engine/host_facts.h"

namespace omnihvd {
namespace {

// The rate at which one progress thread, on a core of its own, sent dense tensors over TCP:
// benchmarks/README.md.
constexpr double kBytesPerThread = 1.7e9;
constexpr uint32_t kMost = 8;

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code unread;  // an error ends the loop
  for (std::filesystem::directory_iterator at(folder, unread), end; at != end; at.increment(unread))
    if (const std::string name = at->path().filename(); name[0] != '.') names.push_back(name);
  return names;
}

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

double number(const std::string& text) { return std::max(0.0, std::strtod(text.c_str(), nullptr)); }

uint32_t ranks_of_host() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS"})
    if (const char* value = std::getenv(name)) return uint32_t(std::max(1.0, number(value)));
  return 1;
}

}  // namespace

uint32_t streams_for(double link_bytes_per_s, uint32_t cores) {
  const double wanted = std::min(std::ceil(link_bytes_per_s / kBytesPerThread), double(kMost));
  return std::max(1u, std::min(uint32_t(wanted), cores / 2));
}

uint32_t cores_each(uint32_t allowed, double limit, uint32_t online, uint32_t ranks) {
  const uint32_t cores = std::min(allowed ? allowed : online, online / ranks);
  return limit > 0 ? std::min(cores, uint32_t(limit / ranks)) : cores;
}

double fastest_link(const std::string& sysfs) {
  double bits = 0;
  const std::string net = sysfs + "/class/net/";
  for (const std::string& device : entries(net))
    if (first_word(net + device + "/operstate") == "up")
      bits = std::max(bits, 1e6 * number(first_word(net + device + "/speed")));
  const std::string infiniband = sysfs + "/class/infiniband/";
  for (const std::string& device : entries(infiniband))
    for (const std::string& port : entries(infiniband + device + "/ports")) {
      const std::string path = infiniband + device + "/ports/" + port;
      if (first_word(path + "/state") == "4:")  // ACTIVE
        bits = std::max(bits, 1e9 * number(first_word(path + "/rate")));
    }
  return bits / 8;
}

uint32_t automatic_streams() {
  // Once, since some callers read settings in each call.
  static const uint32_t found = [] {
    const Cores mine = cores_of_this_thread();
    const auto online = uint32_t(std::max(1l, ::sysconf(_SC_NPROCESSORS_ONLN)));
    const auto allowed = uint32_t(CPU_COUNT(&mine.allowed));
    return streams_for(fastest_link(), cores_each(allowed, mine.limit, online, ranks_of_host()));
  }();
  return found;
}

}  // namespace omnihvd
