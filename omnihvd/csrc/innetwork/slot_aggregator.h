// A user-space aggregator of datagrams: the slots of slot.h and their sums. Pure: datagrams in,
// datagrams out. It is the reference for the data planes, and serves where there are none. It
// trusts no datagram.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/slice.h"
#include "innetwork/packet.h"
#include "innetwork/slot.h"
#include "numeric/block_ops.h"

namespace omnihvd {

// Counts of datagrams by their fate; the XDP program counts the same, in this order.
enum class InlineCount : uint32_t {
  taken,      // contributions
  results,    // sent to all
  answers,    // results sent again to a worker that lacked them
  duplicate,  // contributions that came before
  old,
  early,
  impossible,  // a worker of the job breaks the protocol
  too_short,
  too_long,
  forged,     // the key is not the job's
  other_job,  // a job unknown here
  stranger,   // a worker that is not in the job
};
constexpr size_t kInlineCounts = 12;
extern const char* const kInlineCountNames[kInlineCounts];

// A data plane: sums the contributions of jobs.
class InlinePlane {
 public:
  virtual ~InlinePlane() = default;
  // A job begins, or ends (workers: 0). numbers: one of inline_numbers that adds() accepts.
  virtual void set_job(size_t job, uint64_t key, uint32_t workers, uint8_t numbers) = 0;
  virtual bool adds(uint8_t numbers) const = 0;
  // How many contributions a job has sent so far, or any number that changes with them.
  virtual uint64_t contributions(size_t job) const = 0;
  struct Round {
    uint32_t number;
    uint32_t missing;  // bits: workers that it waits for
  };
  // The round that a slot of a job is summing.
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
    size_t job;  // the job concerned
    inline_head head;
    Slice block;  // valid until INLINE_VERSIONS rounds later
  };
  Answer take(const uint8_t* data, size_t size);
  // Is the datagram a contribution? All others are for InlineJobs.
  static bool is_contribution(const uint8_t* data, size_t size);
  const std::array<uint64_t, kInlineCounts>& counts() const { return counts_; }

 private:
  struct Job {
    uint64_t key = 0;
    uint32_t workers = 0;
    uint64_t contributions = 0;
    const BlockOps* ops = nullptr;
    bool takes_codes = false;
  };
  struct Slot {
    inline_slot state;
    // Accumulators, sized for the largest kind; blocks once a round is complete.
    uint64_t sums[INLINE_VERSIONS][INLINE_ELEMENTS];
  };
  Answer refuse(InlineCount count);
  void count(InlineCount what) { ++counts_[size_t(what)]; }
  Answer result(const inline_head& head, const Slot& slot, const slot_decision& decision, To to);

  const uint16_t slots_per_job_;
  std::vector<Job> jobs_;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<Slot[], Free> slots_;  // [job][slot]; zeros, and memory once a slot is used
  std::array<uint64_t, kInlineCounts> counts_{};
};

}  // namespace omnihvd
