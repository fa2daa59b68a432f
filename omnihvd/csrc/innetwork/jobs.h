// The jobs of an in-network aggregator: who may join, and what the data plane must know of each
// job. Pure: datagrams in, datagrams out; times are arguments, in microseconds of a monotonic
// clock.
//
// A join carries a code (SipHash) that only a holder of the secret can compute. A contribution
// carries the job's key, which derives from the secret and the session. Anyone who can read the
// network can read that key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "innetwork/packet.h"
#include "innetwork/refusals.h"
#include "innetwork/siphash.h"
#include "innetwork/slot_aggregator.h"

namespace omnihvd {

constexpr size_t kSignedBytes = INLINE_HEAD_BYTES + sizeof(uint64_t);

enum class InlineRefusal : uint8_t {
  full = 1,
  other_workers,
  unknown,
  other_numbers,
  no_numbers,
  bypasses,
};
std::string reason(InlineRefusal refusal);

// Signs and verifies datagrams; both sides derive their keys from the same secret.
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
  std::vector<uint64_t> addresses;  // [worker], as its join gave it; 0: it has not joined
  uint32_t ended = 0;               // bits of the workers that have ended, as their hosts report
  Refusals refusals;                // these reports
  uint64_t contributions = 0;       // at the first of them
};

class InlineJobs {
 public:
  // plane: must outlive this. group: the IPv4 multicast address and port of the results, which the
  // workers join; 0: results go to each worker.
  InlineJobs(const std::string& secret, const InlinePlane& plane, size_t jobs, uint16_t slots,
             uint32_t group, uint16_t group_port);

  struct Answer {
    uint8_t bytes[kSignedBytes];
    std::optional<size_t> changed;         // the job that has begun or ended
    std::optional<InlineRefusal> refused;  // why the sender's job was refused
    bool asks = false;                     // the caller must send questions()
  };
  // Answers a join or a leave; nothing if the datagram is neither, or forged.
  std::optional<Answer> take(uint64_t now, uint64_t from, const uint8_t* data, size_t size);
  // Refuses a contribution that has passed by the plane, if it comes from a worker that has joined.
  std::optional<Answer> take_bypass(uint64_t from, const uint8_t* data, size_t size) const;
  // Questions to the workers of all jobs. A process that computes, or is stopped, does not answer,
  // but it lives: its host reports if nobody has the socket any more.
  struct Question {
    uint64_t to;
    uint8_t bytes[kSignedBytes];
  };
  std::vector<Question> questions(uint64_t now);
  // A host reports that nobody has this socket. Returns the job that has ended with it, if all its
  // workers have ended. A single report ends no job, and no number of reports ends a job that goes
  // on contributing.
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
  void refuse(inline_head head, InlineRefusal why, Answer* answer) const;
  void leave(const inline_head& head, Answer* answer);

  const InlineSecret secret_;
  const InlinePlane& plane_;
  const uint16_t slots_, group_port_;
  const uint32_t group_;
  std::vector<InlineJob> jobs_;
  struct Waiting {
    uint64_t from, since;
  };
  std::vector<Waiting> waiting_;         // workers that wait to join while all places are taken
  uint64_t asked_at_ = 0, news_at_ = 0;  // of the last questions; of the last worker found ended
};

}  // namespace omnihvd
