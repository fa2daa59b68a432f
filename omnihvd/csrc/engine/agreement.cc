#include "engine/agreement.h"

#include <cstring>
#include <new>
#include <optional>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"

namespace omnihvd {
namespace {

// Do all ranks have the same secret? Throws Error, on all ranks, if some have different ones, or if
// the encryption key would have to travel.
bool same_secret(const std::vector<std::string>& proofs, const GroupInfo& info, bool warn) {
  std::optional<size_t> with, without;  // the first rank with a secret, and without
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

// "What went wrong" (empty: nothing), the host, then the content.
std::string words_of(const Node& self, const std::function<std::string()>& content) {
  BytesWriter out;
  std::string made, failure;
  try {
    made = content();
  } catch (const std::bad_alloc&) {
    failure = "no memory is left";
  } catch (const std::exception& why) {
    failure = why.what();
    if (failure.empty()) failure = "unknown failure";
  }
  out.text(failure);
  out.text(self.host);
  out.text(made);
  return out.bytes();
}

std::vector<std::string> contents_of(const std::vector<std::string>& words) {
  std::vector<std::string> contents;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    BytesReader in(words[rank]);
    const std::string why = in.text(), host = in.text();
    if (!why.empty()) throw Error("omnihvd cannot start on " + rank_name(rank, host) + ": " + why);
    contents.push_back(in.text());
  }
  return contents;
}

std::string GroupAgreement::introduction() const {
  BytesWriter out;
  out.text(self_.pack());
  // Proves that a rank has a secret, and shows whether two ranks have the same.
  out.text(settings_.secret.empty() ? "" : to_string(hmac_sha256(settings_.secret, "rank")));
  out.text(pack_agreed(settings_));
  return out.bytes();
}

void GroupAgreement::hear_introductions(const std::vector<std::string>& all) {
  info_.workers = uint32_t(all.size());
  info_.settings = settings_;
  std::vector<std::string> proofs, packed, names;
  for (const std::string& one : all) {
    BytesReader in(one);
    info_.nodes.push_back(Node::unpack(in.text()));
    proofs.push_back(in.text());
    packed.push_back(in.text());
    names.push_back(info_.name_of(uint32_t(names.size())));
  }
  agree_on_settings(packed, names, &info_.settings);
  fans_of(info_.settings.levels, info_.workers, 0);  // throws before any rank is told more
  // Then the key need not travel where others may read it.
  all_have_secret_ = same_secret(proofs, info_, rank_ == 0);
}

GroupInfo& GroupAgreement::make(const std::string& number, const std::string& key) {
  std::memcpy(&info_.id, number.data(), sizeof info_.id);
  info_.key = group_key(settings_.secret.empty() ? key : settings_.secret, info_.id);
  return info_;
}

std::string GroupAgreement::decision() const {
  BytesWriter out;
  out.text(info_.pack());
  out.text(all_have_secret_ ? "" : info_.key);
  return out.bytes();
}

std::shared_ptr<const GroupInfo> GroupAgreement::group_of(const std::string& decision) const {
  BytesReader in(decision);
  auto info = std::make_shared<GroupInfo>(GroupInfo::unpack(in.text()));
  info->key = in.text();
  if (all_have_secret_) info->key = group_key(settings_.secret, info->id);
  info->settings = info_.settings;  // this process's own, where ranks may differ
  return info;
}

}  // namespace omnihvd
