// An aggregator of datagrams in user space: the slots of slot.h, and their sums. Pure: datagrams
// in, datagrams out. It is what the data planes are compared with, and what serves where there are
// none. Trusts nothing that comes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/slice.h"
#include "inline/packet.h"
#include "inline/slot.h"
#include "protocol/block_ops.h"

namespace omnihvd {

// What became of datagrams; the XDP program counts the same, in this order.
enum class InlineCount : uint32_t {
  taken,      // contributions
  results,    // to all
  answers,    // results for those whom they have not reached
  duplicate,  // contributions that have come before
  old,
  early,
  impossible,  // a worker of the job that does not keep to the protocol
  too_short,
  too_long,
  forged,     // with a key that is not the job's
  other_job,  // of which nothing is known here
  stranger,   // a worker that the job has not
};
constexpr size_t kInlineCounts = 12;
extern const char* const kInlineCountNames[kInlineCounts];

// Where the contributions of jobs are summed.
class InlinePlane {
 public:
  virtual ~InlinePlane() = default;
  // A job begins, or ends (workers: 0). numbers: as of inline_numbers, and added here.
  virtual void set_job(size_t job, uint64_t key, uint32_t workers, uint8_t numbers) = 0;
  virtual bool adds(uint8_t numbers) const = 0;
  // That came of a job so far, or any number that has changed if some have.
  virtual uint64_t contributions(size_t job) const = 0;
  struct Round {
    uint32_t number;
    uint32_t missing;  // workers for whom it waits: bits
  };
  // That is being summed in a slot of a job.
  virtual Round round(size_t job, uint16_t slot) const = 0;
};

class SlotAggregator final : public InlinePlane {
 public:
  SlotAggregator(size_t jobs, uint16_t slots);

  void set_job(size_t job, uint64_t key, uint32_t workers, uint8_t numbers) override;
  bool adds(uint8_t numbers) const override { return numbers < INLINE_NUMBERS; }
  uint64_t contributions(size_t job) const override { return jobs_[job].contributions; }
  Round round(size_t job, uint16_t slot) const override {
    const inline_slot& state = slots_[job * slots_per_job_ + slot].state;
    return {state.round, slot_missing(&state, jobs_[job].workers)};
  }

  enum class To : uint8_t { nobody, all, sender };
  struct Answer {
    To to;
    size_t job;  // which one's
    inline_head head;
    Slice block;  // until INLINE_VERSIONS rounds later
  };
  Answer take(const uint8_t* data, size_t size);
  // Whether it is a contribution at all; others are for InlineJobs.
  static bool is_contribution(const uint8_t* data, size_t size);
  const std::array<uint64_t, kInlineCounts>& counts() const { return counts_; }

 private:
  struct Job {
    uint64_t key = 0;
    uint32_t workers = 0;
    uint64_t contributions = 0;
    const BlockOps* ops = nullptr;
  };
  struct Slot {
    inline_slot state;
    // Accumulators, whose room is that of the largest kind; of complete rounds: blocks.
    uint64_t sums[INLINE_VERSIONS][INLINE_ELEMENTS];
  };
  Answer refuse(InlineCount count);
  void count(InlineCount what) { ++counts_[size_t(what)]; }
  Answer result(const inline_head& head, const Slot& slot, const slot_decision& decision, To to);

  const uint16_t slots_per_job_;
  std::vector<Job> jobs_;
  std::vector<Slot> slots_;  // [job][slot]
  std::array<uint64_t, kInlineCounts> counts_{};
};

}  // namespace omnihvd
