// The jobs of an aggregator in the data path: who may join, and what the data path is to know of
// each. Pure: datagrams in, datagrams out; times are arguments, microseconds of a clock that never
// goes back.
//
// Joins carry a code that only who knows the secret can make (SipHash); contributions carry the
// job's key, which follows from the secret and the session: who reads the network can read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/siphash.h"
#include "inline/packet.h"
#include "inline/slot_aggregator.h"

namespace omnihvd {

constexpr size_t kSignedBytes = INLINE_HEAD_BYTES + sizeof(uint64_t);

enum class InlineRefusal : uint8_t { full = 1, other_workers, unknown, other_numbers, no_numbers };
std::string reason(InlineRefusal refusal);

// What both sides make of a secret.
class InlineSecret {
 public:
  explicit InlineSecret(const std::string& secret);
  uint64_t job_key(uint64_t session) const;
  // Writes kSignedBytes.
  void sign(const inline_head& head, uint8_t* out) const;
  std::optional<inline_head> proven(const uint8_t* data, size_t size) const;

 private:
  SipKey join_{}, key_{};
};

struct InlineJob {
  uint64_t session = 0, key = 0;
  uint32_t workers = 0;  // 0: the place is free
  uint8_t numbers = INLINE_INT32;
  std::vector<uint64_t> addresses;  // [worker], as given with its join; 0: it has not joined
  // Workers for whom their hosts say that they have ended, bits; how often any was said to have,
  // since when, and how much the job had contributed then.
  uint32_t ended = 0, refusals = 0;
  uint64_t refused_since = 0, contributions = 0;
};

class InlineJobs {
 public:
  // plane: must outlive this. group: the IPv4 address and port to which results go, for the workers
  // to join; 0: to each.
  InlineJobs(const std::string& secret, const InlinePlane& plane, size_t jobs, uint16_t slots,
             uint32_t group, uint16_t group_port);

  struct Answer {
    uint8_t bytes[kSignedBytes];
    std::optional<size_t> changed;         // this job has begun or ended
    std::optional<InlineRefusal> refused;  // the job of who asked
    bool asks = false;                     // questions() are to go out
  };
  // Of a join or a leave; none: it is no such, or forged.
  std::optional<Answer> take(uint64_t now, uint64_t from, const uint8_t* data, size_t size);
  // To the workers of all jobs. A process that computes, or is stopped, does not answer, but lives:
  // it is its host that says if nobody has the socket any more.
  struct Question {
    uint64_t to;
    uint8_t bytes[kSignedBytes];
  };
  std::vector<Question> questions(uint64_t now);
  // A host says that nobody has this socket. Returns the job that has ended with it: all its
  // workers have. A single report ends no job, nor do many a job that goes on contributing.
  std::optional<size_t> take_refusal(uint64_t now, uint64_t from);
  const std::vector<InlineJob>& jobs() const { return jobs_; }

 private:
  std::optional<size_t> find(uint64_t session) const;
  std::optional<size_t> place() const;
  bool may_get_place(uint64_t now, uint64_t from);
  void admit(size_t at, const inline_head& head);
  std::optional<InlineRefusal> join(uint64_t now, uint64_t from, const inline_head& head,
                                    Answer* answer);
  void tell_of_round(size_t job, const inline_head& asked, inline_head* welcome) const;
  void leave(const inline_head& head, Answer* answer);

  const InlineSecret secret_;
  const InlinePlane& plane_;
  const uint16_t slots_, group_port_;
  const uint32_t group_;
  std::vector<InlineJob> jobs_;
  struct Waiting {
    uint64_t from, since;
  };
  std::vector<Waiting> waiting_;  // workers that join where all places are taken
  uint64_t asked_at_ = 0,
           news_at_ = 0;  // questions last went out; a worker was found to have ended
};

}  // namespace omnihvd
