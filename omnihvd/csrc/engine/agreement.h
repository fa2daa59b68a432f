// The bootstrap of a group, as pure functions: what its ranks tell each other, and what follows.
// How each rank's message reaches all ranks is the caller's concern (engine/rendezvous.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/group_info.h"

namespace omnihvd {

// A rank's message: its content; or the error that `content` threw.
std::string words_of(const Node& self, const std::function<std::string()>& content);
// The contents of all ranks' messages. If something went wrong on any rank, throws an Error, the
// same on all ranks, that names the first such rank.
std::vector<std::string> contents_of(const std::vector<std::string>& words);

// Two rounds: all ranks introduce themselves; then rank 0 says what the group is.
class GroupAgreement {
 public:
  GroupAgreement(const Node& self, const Settings& settings, uint32_t rank)
      : self_(self), settings_(settings), rank_(rank) {}

  std::string introduction() const;
  // Takes all ranks' introductions. Throws Error, on all ranks, if they cannot form a group.
  void hear_introductions(const std::vector<std::string>& all);

  // On rank 0 only: makes the group; the caller adds the dedicated aggregators. number (8 bytes)
  // and key (32 bytes) are random. If all ranks have the same secret, the key derives from that
  // instead.
  GroupInfo& make(const std::string& number, const std::string& key);
  std::string decision() const;

  // The group that rank 0's decision describes. Throws Error if the decision is malformed.
  std::shared_ptr<const GroupInfo> group_of(const std::string& decision) const;

 private:
  const Node self_;
  const Settings settings_;  // this process's own
  const uint32_t rank_;
  GroupInfo info_;
  bool all_have_secret_ = false;
};

}  // namespace omnihvd
