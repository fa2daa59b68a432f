// What the ranks of a new group tell each other, and what follows from it. Pure: how the words of
// all ranks come to all is the caller's concern (session/join.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "session/group_info.h"

namespace omnihvd {

// The words of a rank: its content; or what went wrong on it, thrown by `content`.
std::string words_of(const Node& self, const std::function<std::string()>& content);
// The contents of the words of all ranks. Throws Error, the same on all, that names the first rank
// on which something went wrong.
std::vector<std::string> contents_of(const std::vector<std::string>& words);

// Two rounds: all say who they are; then rank 0 says what the group is.
class GroupAgreement {
 public:
  GroupAgreement(const Node& self, const Settings& settings, uint32_t rank);

  std::string introduction() const;
  // Of all ranks. Throws Error, on all, where they cannot be a group.
  void hear_introductions(const std::vector<std::string>& all);

  // On rank 0 only: makes the group, to which the caller adds the dedicated aggregators. number, of
  // 8 bytes, and key, of 32, are random; where all ranks have the same secret the key follows from
  // that.
  GroupInfo& make(const std::string& number, const std::string& key);
  std::string decision() const;

  // Of rank 0's decision. Throws Error: malformed.
  std::shared_ptr<const GroupInfo> group_of(const std::string& decision) const;

 private:
  const Node self_;
  const Settings settings_;  // this process's own
  const uint32_t rank_;
  GroupInfo info_;
  bool all_have_secret_ = false;
};

}  // namespace omnihvd
