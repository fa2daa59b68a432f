#include "session/join.h"

#include <cstring>
#include <functional>
#include <optional>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "session/rendezvous.h"

namespace omnihvd {
namespace {

// Each rank's bytes are "what went wrong" (empty: nothing), the host, then the content.
std::vector<std::string> exchange_or_throw(Exchange& exchange, const Node& self,
                                           const std::function<std::string()>& content) {
  BytesWriter mine;
  std::string made, failure;
  try {
    made = content();
  } catch (const std::exception& why) {
    failure = why.what();
    if (failure.empty()) failure = "unknown failure";
  }
  mine.text(failure);
  mine.text(self.host);
  mine.text(made);
  std::vector<std::string> all = exchange.allgather(mine.bytes());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    BytesReader in(all[rank]);
    const std::string why = in.text(), host = in.text();
    if (!why.empty())
      throw Error("omnihvd cannot start on rank " + std::to_string(rank) + " (" + host +
                  "): " + why);
    all[rank] = in.text();
  }
  return all;
}

// Shows that a rank has a secret, and whether it is another's, too.
std::string proof_of(const std::string& secret) {
  return secret.empty() ? "" : to_string(hmac_sha256(secret, "rank"));
}

// Whether all ranks have the same secret. Throws Error, on all ranks, when some have different
// ones, or when the key of what is to be encrypted would have to travel.
bool same_secret(const std::vector<std::string>& proofs, const GroupInfo& info, bool warn) {
  std::optional<size_t> with, without;  // the first of them
  for (size_t rank = 0; rank < proofs.size(); ++rank) {
    std::optional<size_t>& first = proofs[rank].empty() ? without : with;
    if (!first) first = rank;
    if (!proofs[rank].empty() && proofs[rank] != proofs[*with])
      throw Error("OMNIHVD_SECRET of " + info.name_of(rank) + " is not that of " +
                  info.name_of(*with) + ": it must be the same everywhere");
  }
  if (!without) return true;
  const std::string who = info.name_of(*without) + " has no OMNIHVD_SECRET";
  const std::string remedy = "set it, or OMNIHVD_SECRET_FILE, on all ranks (mpirun: -x NAME)";
  if (info.settings.encrypt)
    throw Error("OMNIHVD_ENCRYPT=1 needs a secret, and " + who + ": " + remedy);
  if (with && warn)
    log(LogLevel::warning, who, ", but ", info.name_of(*with),
        " has: the group's key travels in the clear; ", remedy);
  return false;
}

}  // namespace

std::shared_ptr<const GroupInfo> agree_on_group(Exchange& exchange, const Node& self,
                                                const Settings& settings) {
  const auto nodes = exchange_or_throw(exchange, self, [&] {
    BytesWriter out;
    out.text(self.pack());
    out.text(proof_of(settings.secret));
    out.text(pack_agreed(settings));
    return out.bytes();
  });
  auto info = std::make_shared<GroupInfo>();
  info->workers = uint32_t(exchange.size());
  info->settings = settings;
  std::vector<std::string> proofs, packed, names;
  for (const std::string& node : nodes) {
    BytesReader in(node);
    info->nodes.push_back(Node::unpack(in.text()));
    proofs.push_back(in.text());
    packed.push_back(in.text());
    names.push_back(info->name_of(uint32_t(names.size())));
  }
  agree_on_settings(packed, names, &info->settings);
  Settings agreed = info->settings;          // this process's own, where all need not agree
  fans_of(agreed.levels, info->workers, 0);  // throws, on all ranks, before any is told more
  // Then the key need not pass through the exchange, where others may read it.
  const bool all_have_secret = same_secret(proofs, *info, exchange.rank() == 0);

  // Rank 0 speaks for the group: the rest is what it says.
  const auto said = exchange_or_throw(exchange, self, [&] {
    if (exchange.rank() != 0) return std::string();
    const std::string number = random_bytes(sizeof info->id);
    std::memcpy(&info->id, number.data(), number.size());
    const std::string secret = settings.secret.empty() ? random_bytes(32) : settings.secret;
    info->key = group_key(secret, info->id);
    add_dedicated_aggregators(settings.aggregators, settings.secret, info.get());
    BytesWriter out;
    out.text(info->pack());
    out.text(all_have_secret ? "" : info->key);
    return out.bytes();
  });
  BytesReader in(said[0]);
  *info = GroupInfo::unpack(in.text());
  info->key = in.text();
  if (all_have_secret) info->key = group_key(settings.secret, info->id);
  remember_aggregators(*info);
  remember_hosts(*info);
  info->settings = std::move(agreed);
  return info;
}

void meet(Exchange& exchange, const Node& self, const std::string& failure) {
  exchange_or_throw(exchange, self, [&] {
    if (!failure.empty()) throw Error(failure);
    return std::string();
  });
}

}  // namespace omnihvd
