#include "inline/jobs.h"

#include <algorithm>
#include <cstring>

#include "base/sha256.h"

namespace omnihvd {
namespace {

constexpr uint64_t kIdle = 60'000'000;  // microseconds until a silent job may be replaced

}  // namespace

std::string reason(InlineRefusal refusal) {
  switch (refusal) {
    case InlineRefusal::full: return "it has as many jobs as it takes (--jobs)";
    case InlineRefusal::other_workers:
      return "others of this job have said another number of workers";
    case InlineRefusal::unknown:
      return "it does not know this job any more: it was started anew, or took another in its "
             "place";
    case InlineRefusal::other_numbers:
      return "others of this job sum other numbers: arithmetic must be the same on all workers";
    case InlineRefusal::no_numbers:
      return "it does not add such numbers: an aggregator on XDP has no floats but FPISA's, a "
             "socket and AF_XDP have";
  }
  return "for a reason that this release does not know: install the same omnihvd on all hosts";
}

InlineSecret::InlineSecret(const std::string& secret) {
  const Digest digest = sha256("omnihvd inline 1\n" + secret);
  std::memcpy(join_.data(), digest.data(), sizeof join_);
  std::memcpy(key_.data(), digest.data() + sizeof join_, sizeof key_);
}

uint64_t InlineSecret::job_key(uint64_t session) const {
  return siphash(key_, reinterpret_cast<const uint8_t*>(&session), sizeof session);
}

void InlineSecret::sign(const inline_head& head, uint8_t* out) const {
  std::memcpy(out, &head, sizeof head);
  const uint64_t tag = siphash(join_, out, sizeof head);
  std::memcpy(out + sizeof head, &tag, sizeof tag);
}

std::optional<inline_head> InlineSecret::proven(const uint8_t* data, size_t size) const {
  if (size != kSignedBytes) return {};
  const uint64_t tag = siphash(join_, data, INLINE_HEAD_BYTES);
  uint8_t expected[sizeof tag];
  std::memcpy(expected, &tag, sizeof tag);
  if (!equal_in_constant_time(expected, data + INLINE_HEAD_BYTES, sizeof tag)) return {};
  inline_head head;
  std::memcpy(&head, data, sizeof head);
  return head;
}

InlineJobs::InlineJobs(const std::string& secret, const InlinePlane& plane, size_t jobs,
                       uint16_t slots, uint32_t group, uint16_t group_port)
    : secret_(secret),
      plane_(plane),
      slots_(slots),
      group_port_(group_port),
      group_(group),
      jobs_(jobs) {}

std::optional<size_t> InlineJobs::find(uint64_t session) const {
  for (size_t i = 0; i < jobs_.size(); ++i)
    if (jobs_[i].workers > 0 && jobs_[i].session == session) return i;
  return {};
}

std::optional<size_t> InlineJobs::place(uint64_t now) const {
  std::optional<size_t> idlest;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    if (jobs_[i].workers == 0) return i;
    if (!idlest || jobs_[i].heard_at < jobs_[*idlest].heard_at) idlest = i;
  }
  return idlest && now - jobs_[*idlest].heard_at > kIdle ? idlest : std::nullopt;
}

std::optional<InlineRefusal> InlineJobs::join(uint64_t now, uint64_t from, const inline_head& head,
                                              Answer* answer) {
  std::optional<size_t> at = find(head.key);
  if (!at) {
    if (head.flags & INLINE_REPEAT) return InlineRefusal::unknown;
    if (!plane_.adds(head.numbers)) return InlineRefusal::no_numbers;
    at = place(now);
    if (!at) return InlineRefusal::full;
    const uint32_t workers = head.round;
    jobs_[*at] = {head.key,     secret_.job_key(head.key),      workers,
                  head.numbers, std::vector<uint64_t>(workers), now};
    answer->changed = at;
  }
  InlineJob& job = jobs_[*at];
  if (job.workers != head.round) return InlineRefusal::other_workers;
  if (job.numbers != head.numbers) return InlineRefusal::other_numbers;
  job.addresses[head.worker] = from;
  job.heard_at = now;
  inline_head welcome = head;
  welcome.kind = INLINE_WELCOME;
  welcome.flags = 0;
  welcome.job = uint16_t(*at);
  welcome.slot = slots_;
  welcome.block = group_;
  welcome.next = group_port_;
  if (head.flags & INLINE_REPEAT) tell_of_round(*at, head, &welcome);
  secret_.sign(welcome, answer->bytes);
  return {};
}

// Whose result a worker awaits, as it says when it asks again: whether it is there, or who is not.
void InlineJobs::tell_of_round(size_t job, const inline_head& asked, inline_head* welcome) const {
  welcome->flags = INLINE_REPEAT;
  welcome->block = 0;
  if (asked.slot >= slots_) return;
  const InlinePlane::Round round = plane_.round(job, asked.slot);
  if (int32_t(round.number - asked.block) > 0) welcome->flags |= INLINE_THERE;
  if (round.number == asked.block) welcome->block = round.missing;
}

void InlineJobs::leave(const inline_head& head, Answer* answer) {
  const std::optional<size_t> at = find(head.key);
  if (at && jobs_[*at].workers == head.round) {
    auto& addresses = jobs_[*at].addresses;
    addresses[head.worker] = 0;
    if (std::all_of(addresses.begin(), addresses.end(), [](uint64_t a) { return a == 0; })) {
      jobs_[*at] = {};
      answer->changed = at;
    }
  }
  secret_.sign(head, answer->bytes);
}

std::optional<InlineJobs::Answer> InlineJobs::take(uint64_t now, uint64_t from, const uint8_t* data,
                                                   size_t size) {
  const std::optional<inline_head> head = secret_.proven(data, size);
  if (!head || (head->kind != INLINE_JOIN && head->kind != INLINE_LEAVE)) return {};
  if (head->round < 1 || head->round > INLINE_WORKERS || head->worker >= head->round) return {};
  Answer answer{};
  if (head->kind == INLINE_LEAVE) {
    leave(*head, &answer);
  } else if (const auto refusal = join(now, from, *head, &answer)) {
    inline_head refused = *head;
    refused.kind = INLINE_REFUSAL;
    refused.flags = uint8_t(*refusal);
    secret_.sign(refused, answer.bytes);
  }
  return answer;
}

}  // namespace omnihvd
