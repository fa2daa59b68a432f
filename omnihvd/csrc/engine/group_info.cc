#include "engine/group_info.h"

#include <mutex>

#include "base/bytes.h"
#include "base/sha256.h"

namespace omnihvd {
namespace {

std::mutex hosts_mutex;  // guards hosts()
struct Hosts {
  std::set<std::string> workers, aggregators;
};
Hosts& hosts() {
  static auto* hosts = new Hosts;
  return *hosts;
}

}  // namespace

void remember_hosts(const GroupInfo& info) {
  const std::lock_guard lock(hosts_mutex);
  for (size_t node = 0; node < info.nodes.size(); ++node)
    (node < info.workers ? hosts().workers : hosts().aggregators).insert(info.nodes[node].host);
}

std::set<std::string> hosts_of_groups() {
  const std::lock_guard lock(hosts_mutex);
  return hosts().workers;
}

bool aggregated(const std::string& address) {
  const std::lock_guard lock(hosts_mutex);
  return hosts().aggregators.count(address) != 0;
}

std::string Node::pack() const {
  BytesWriter out;
  out.text(host);
  for (const std::string& address : addresses) out.text(address);
  return out.bytes();
}

Node Node::unpack(const std::string& bytes) {
  BytesReader in(bytes);
  Node node{in.text(), {}};
  while (!in.at_end()) node.addresses.push_back(in.text());
  if (node.addresses.empty()) throw Error("malformed description of a group: no address");
  return node;
}

std::string GroupInfo::name_of(uint32_t node) const {
  if (node < workers) return rank_name(node, nodes[node].host);
  return "aggregator " + std::to_string(node - workers) + " (" + nodes[node].host + ")";
}

void GroupInfo::take_seats() {
  seats =
      std::make_shared<Seats>(workers, dedicated(), fans_of(settings.levels, workers, dedicated()));
}

std::string GroupInfo::pack() const {
  BytesWriter out;
  out.u64(id);
  out.u64(workers);
  out.text(pack_agreed(settings));
  out.u64(nodes.size());
  for (const Node& node : nodes) out.text(node.pack());
  return out.bytes();
}

GroupInfo GroupInfo::unpack(const std::string& bytes) {
  BytesReader in(bytes);
  GroupInfo info;
  info.id = in.u64();
  info.workers = in.number<uint32_t>();
  agree_on_settings({in.text()}, {"rank 0"}, &info.settings);
  info.nodes.resize(in.count());
  for (Node& node : info.nodes) node = Node::unpack(in.text());
  if (info.workers == 0 || info.workers > info.nodes.size())
    throw Error("malformed description of a group: no workers");
  info.take_seats();
  return info;
}

std::string group_key(const std::string& secret, uint64_t group) {
  BytesWriter statement;
  statement.text("group");
  statement.u64(group);
  return to_string(hmac_sha256(secret, statement.bytes()));
}

}  // namespace omnihvd
