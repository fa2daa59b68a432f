#include "innetwork/jobs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/sha256.h"

namespace omnihvd {
namespace {

// Microseconds. A host may limit itself to one refusal a second per destination, after the first
// six.
constexpr uint64_t kAskEvery = 100'000, kAnswerWithin = 1'500'000, kForget = 3'000'000;
static_assert(kAskEvery >= Refusals::kFor);

// Have all workers ended that joined and did not leave?
bool have_all_ended(const InlineJob& job) {
  bool all = true;
  for (uint32_t w = 0; w < job.workers; ++w) all &= job.addresses[w] == 0 || job.ended >> w & 1;
  return all;
}

}  // namespace

std::string reason(InlineRefusal refusal) {
  switch (refusal) {
    case InlineRefusal::full:
      return "it has as many jobs as it takes (--jobs), and none of them has ended: start the "
             "aggregator with more places, or this job when one of the others has ended";
    case InlineRefusal::other_workers:
      return "other workers of this job gave another number of workers: give all the same";
    case InlineRefusal::unknown:
      return "it does not know this job any more: it was restarted, or the hosts of all workers "
             "reported their end; start the job again";
    case InlineRefusal::other_numbers:
      return "other workers of this job sum other numbers: give all workers the same arithmetic";
    case InlineRefusal::no_numbers:
      return "it does not add such numbers: on XDP use arithmetic=\"integer\" or \"fpisa\", or "
             "start the aggregator with --udp or --af-xdp";
    case InlineRefusal::bypasses:
      return "the datagrams of this rank do not pass the interface of --xdp: run it on another "
             "host than the aggregator, without VLANs, fragments or a second interface there, or "
             "use --udp";
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
  if (!equal_in_constant_time(&tag, data + INLINE_HEAD_BYTES, sizeof tag)) return {};
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

std::optional<size_t> InlineJobs::place() const {
  for (size_t i = 0; i < jobs_.size(); ++i)
    if (jobs_[i].workers == 0) return i;
  return {};
}

// True while answers may still come, or while one brought news a moment ago.
bool InlineJobs::may_get_place(uint64_t now, uint64_t from) {
  const auto old = [now](const Waiting& one) { return now - one.since >= kForget; };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), old), waiting_.end());
  const auto same = [from](const Waiting& one) { return one.from == from; };
  auto found = std::find_if(waiting_.begin(), waiting_.end(), same);
  if (found == waiting_.end()) found = waiting_.insert(found, {from, now});
  return now - std::max(found->since, news_at_) < kAnswerWithin;
}

std::vector<InlineJobs::Question> InlineJobs::questions(uint64_t now) {
  asked_at_ = now;
  std::vector<Question> all;
  for (const InlineJob& job : jobs_) {
    const uint32_t known = have_all_ended(job) ? 0 : job.ended;  // if all ended: ask them once more
    for (uint32_t w = 0; w < job.workers; ++w) {
      if (job.addresses[w] == 0 || known >> w & 1) continue;
      inline_head head{};
      head.key = job.session;
      head.kind = INLINE_QUESTION;
      head.worker = uint16_t(w);
      head.round = job.workers;
      secret_.sign(head, all.emplace_back(Question{job.addresses[w], {}}).bytes);
    }
  }
  return all;
}

std::optional<size_t> InlineJobs::take_refusal(uint64_t now, uint64_t from) {
  for (size_t at = 0; at < jobs_.size(); ++at) {
    InlineJob& job = jobs_[at];
    const auto found = std::find(job.addresses.begin(), job.addresses.end(), from);
    if (found == job.addresses.end() || from == 0) continue;
    const uint64_t contributions = plane_.contributions(at);
    if (!job.refusals.any() || contributions != job.contributions) {
      job.ended = 0;
      job.refusals.clear();
      job.contributions = contributions;
    }
    const uint32_t before =
        std::exchange(job.ended, job.ended | 1u << (found - job.addresses.begin()));
    if (job.refusals.few() || job.ended != before) news_at_ = now;
    job.refusals.add(now);
    if (!job.refusals.enough(now) || !have_all_ended(job)) return {};
    job = {};
    return at;
  }
  return {};
}

void InlineJobs::admit(size_t at, const inline_head& head) {
  InlineJob job;
  job.session = head.key;
  job.key = secret_.job_key(head.key);
  job.workers = head.round;
  job.numbers = head.numbers;
  job.addresses.resize(head.round);
  jobs_[at] = std::move(job);
}

std::optional<InlineRefusal> InlineJobs::join(uint64_t now, uint64_t from, const inline_head& head,
                                              Answer* answer) {
  std::optional<size_t> at = find(head.key);
  if (!at) {
    if (head.flags & INLINE_REPEAT) return InlineRefusal::unknown;
    if (!plane_.adds(head.numbers)) return InlineRefusal::no_numbers;
    at = place();
    if (!at && !may_get_place(now, from)) return InlineRefusal::full;
    if (!at) {
      answer->asks = now - asked_at_ >= kAskEvery;
      inline_head wait = head;
      wait.kind = INLINE_WAIT;
      secret_.sign(wait, answer->bytes);
      return {};
    }
    admit(*at, head);
    answer->changed = at;
  }
  InlineJob& job = jobs_[*at];
  if (job.workers != head.round) return InlineRefusal::other_workers;
  if (job.numbers != head.numbers) return InlineRefusal::other_numbers;
  job.addresses[head.worker] = from;
  job.ended = 0;
  job.refusals.clear();
  inline_head welcome = head;
  welcome.kind = INLINE_WELCOME;
  welcome.flags = plane_.adds(INLINE_NATURAL) ? INLINE_CODES : 0;
  welcome.job = uint16_t(*at);
  welcome.slot = slots_;
  welcome.block = group_;
  welcome.next = group_port_;
  if (head.flags & INLINE_REPEAT) tell_of_round(*at, head, &welcome);
  secret_.sign(welcome, answer->bytes);
  return {};
}

void InlineJobs::refuse(inline_head head, InlineRefusal why, Answer* answer) const {
  head.kind = INLINE_REFUSAL;
  head.flags = uint8_t(why);
  answer->refused = why;
  secret_.sign(head, answer->bytes);
}

// A worker that asks again names the round it waits for. Tells it whether the result is there, or
// which workers are missing.
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
    return answer;
  }
  if (const auto why = join(now, from, *head, &answer)) refuse(*head, *why, &answer);
  return answer;
}

std::optional<InlineJobs::Answer> InlineJobs::take_bypass(uint64_t from, const uint8_t* data,
                                                          size_t size) const {
  inline_head head;
  if (size < sizeof head) return {};
  std::memcpy(&head, data, sizeof head);
  if (head.job >= jobs_.size()) return {};
  const InlineJob& job = jobs_[head.job];
  if (head.worker >= job.workers || head.key != job.key || job.addresses[head.worker] != from)
    return {};
  head.key = job.session;
  Answer answer{};
  refuse(head, InlineRefusal::bypasses, &answer);
  return answer;
}

}  // namespace omnihvd
