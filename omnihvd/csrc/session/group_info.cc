#include "session/group_info.h"

#include <cmath>
#include <mutex>

#include "base/bytes.h"
#include "base/sha256.h"

namespace omnihvd {
namespace {

std::mutex hosts_mutex;  // guards hosts()
std::set<std::string>& hosts() {
  static auto* hosts = new std::set<std::string>;
  return *hosts;
}

}  // namespace

void remember_hosts(const GroupInfo& info) {
  const std::lock_guard lock(hosts_mutex);
  for (uint32_t rank = 0; rank < info.workers; ++rank) hosts().insert(info.nodes[rank].host);
}

std::set<std::string> hosts_of_groups() {
  const std::lock_guard lock(hosts_mutex);
  return hosts();
}

std::string GroupInfo::name_of(uint32_t node) const {
  const std::string number = std::to_string(node < workers ? node : node - workers);
  return (node < workers ? "rank " : "aggregator ") + number + " (" + nodes[node].host + ")";
}

std::string GroupInfo::pack() const {
  BytesWriter out;
  out.u64(id);
  out.u64(workers);
  out.text(pack_agreed(settings));
  out.u64(nodes.size());
  for (const Node& node : nodes) {
    out.text(node.host);
    out.u64(node.addresses.size());
    for (const std::string& address : node.addresses) out.text(address);
  }
  return out.bytes();
}

GroupInfo GroupInfo::unpack(const std::string& bytes) {
  BytesReader in(bytes);
  GroupInfo info;
  info.id = in.u64();
  info.workers = uint32_t(in.u64());
  unpack_agreed(in.text(), &info.settings);
  info.nodes.resize(in.count());
  for (Node& node : info.nodes) {
    node.host = in.text();
    node.addresses.resize(in.count());
    for (std::string& address : node.addresses) address = in.text();
    if (node.addresses.empty()) throw Error("malformed description of a group: no address");
  }
  if (info.workers == 0 || info.workers > info.nodes.size())
    throw Error("malformed description of a group: no workers");
  return info;
}

std::string pack_agreed(const Settings& s) {
  BytesWriter out;
  for (uint64_t value :
       {uint64_t(s.min_bytes), uint64_t(s.block_size), uint64_t(s.message_bytes), uint64_t(s.slots),
        uint64_t(s.streams), uint64_t(s.scan_ahead), uint64_t(s.deterministic),
        uint64_t(s.hierarchy), uint64_t(s.way), uint64_t(s.compress_first), uint64_t(s.encrypt),
        uint64_t(std::llround(s.timeout_s * 1e6)), uint64_t(std::llround(s.stall_warning_s * 1e6))})
    out.u64(value);
  return out.bytes();
}

void unpack_agreed(const std::string& bytes, Settings* s) {
  BytesReader in(bytes);
  s->min_bytes = in.u64();
  s->block_size = uint32_t(in.u64());
  s->message_bytes = uint32_t(in.u64());
  s->slots = uint32_t(in.u64());
  s->streams = uint32_t(in.u64());
  s->scan_ahead = uint32_t(in.u64());
  s->deterministic = in.u64();
  const uint64_t hierarchy = in.u64();
  const uint64_t way = in.u64();
  s->compress_first = in.u64() != 0;
  s->encrypt = in.u64() != 0;
  s->timeout_s = double(in.u64()) / 1e6;
  s->stall_warning_s = double(in.u64()) / 1e6;
  if (s->block_size == 0 || s->message_bytes == 0 || s->slots == 0 || s->streams == 0 ||
      s->streams > 64 || hierarchy > uint64_t(Hierarchy::off) ||
      way > uint64_t(WaySetting::original))
    throw Error("malformed description of a group: impossible settings");
  s->hierarchy = Hierarchy(hierarchy);
  s->way = WaySetting(way);
}

std::string group_key(const std::string& secret, uint64_t group) {
  BytesWriter statement;
  statement.text("group");
  statement.u64(group);
  return to_string(hmac_sha256(secret, statement.bytes()));
}

}  // namespace omnihvd
