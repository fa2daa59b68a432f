#include "transport/registry.h"

#include <map>
#include <mutex>

#include "base/plugin.h"

namespace omnihvd {

std::unique_ptr<Transport> make_ucx_transport(const TransportOptions&);  // ucx/ucx.cc

namespace {

struct Row {
  MakeTransport make = nullptr;  // null: the library libomnihvd_PART.so registers it
  const char* part = nullptr;
};

std::mutex mutex;

std::map<std::string, Row>& rows() {
  static auto* const all = new std::map<std::string, Row>{{"ucx", {make_ucx_transport, nullptr}},
                                                          {"udp", {nullptr, "innetwork"}}};
  return *all;
}

Row row_of(const std::string& name) {
  const std::lock_guard lock(mutex);
  return rows().at(name);
}

}  // namespace

void register_transport(const std::string& name, MakeTransport make) {
  const std::lock_guard lock(mutex);
  rows()[name].make = make;
}

std::vector<std::string> transport_names() {
  const std::lock_guard lock(mutex);
  std::vector<std::string> names;
  for (const auto& [name, row] : rows()) names.push_back(name);
  return names;
}

std::unique_ptr<Transport> make_transport(const std::string& name,
                                          const TransportOptions& options) {
  if (const Row row = row_of(name); !row.make) load_part(row.part);
  return row_of(name).make(options);
}

PacketCounts& packet_counts() {
  static PacketCounts counts;
  return counts;
}

}  // namespace omnihvd
