// An aggregator's side of one collective, over the slots of one progress thread: frames in, frames
// out.
//
// Aggregators may form a tree (seats.h). A child aggregator sums its members' contributions as any
// aggregator does, sends the sum to its parent as a worker would, and passes the topmost
// aggregator's results on to its members unchanged. All aggregators of a tree are in the same round
// of a slot. On each level, a process that has nothing in a window stays silent.
//
// Memory: for each slot, two versions of `window` accumulators, whatever the tensor and the number
// of workers; and for each worker and slot the positions it has named ahead: about as many as a
// window has blocks. There are two versions because a result may still be on its way out of one
// while the next round, in which only some workers take part, is summed into the other.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "numeric/block_coder.h"
#include "numeric/block_ops.h"
#include "protocol/frame.h"
#include "protocol/frame_bytes.h"
#include "protocol/layout.h"

namespace omnihvd {

class Aggregator {
 public:
  // Takes the results for all members, or the contributions to the parent.
  class Sink {
   public:
    virtual ~Sink() = default;
    // `frame` is valid during the call. The memory that its blocks refer to is valid until
    // released(slot, round) is called: once, at any time except from within result(). Blocks with a
    // home lie in the memory of this process's worker, which must get the same result. In a reduce
    // the owner must get it, and all others what without_sums() leaves.
    virtual void result(const Frame& frame) = 0;
    // The same for sums that go to the parent aggregator.
    virtual void contribution(const Frame&) { OMNIHVD_INVARIANT(!"nothing is above"); }
  };

  // ordered: adds contributions in rank order, so that runs reproduce bit for bit; a contribution
  // that arrives out of order is copied and waits. (Integer sums are the same in any order: none
  // waits.)
  // below: set for a child aggregator: the key of the random numbers for its codes, which no rank
  // and no other aggregator uses.
  Aggregator(const Layout& layout, uint32_t index, uint32_t workers, uint32_t stream,
             uint32_t streams, bool ordered, std::optional<uint32_t> below = {});
  ~Aggregator();

  // Throws Error, and changes nothing, if this aggregator does not wait for the contribution. It
  // trusts only the sizes of the blocks, which MessageReader has checked. (If lossless codes hold
  // nonsense, some may already have been added.)
  void on_contribution(uint32_t worker, const Frame& frame, Sink& sink);

  // For a child aggregator: takes a result of its parent. The result is also for all members and
  // must go on to them in the order of rounds: messages between aggregators must not overtake each
  // other. Throws Error, and changes nothing, if this aggregator does not wait for it: `frame` is
  // not trusted.
  void on_result(const Frame& frame);

  // The positions that this worker has named in the slot's window: those of its contribution to
  // this round. Throws Error unless that contribution is awaited. Valid until the next non-const
  // call.
  Positions named(uint32_t worker, uint32_t slot, uint32_t round) const;

  // Nothing refers to the memory of this round's frame any more. May produce the next result.
  void released(uint32_t slot, uint32_t round, Sink& sink);

  // All slots have ended; some results may still wait for released().
  bool done() const { return open_slots_ == 0; }
  // Workers that some slot waits for, without those that only wait for lower ranks' contributions.
  std::vector<uint32_t> awaited() const;
  size_t accumulator_bytes() const;  // held now

 private:
  struct Sum;
  struct Version;
  struct Slot;
  struct Named;  // what one worker has named ahead in a slot
  struct Held;   // an out-of-order contribution

  const Slot& slot_of(uint32_t slot) const;
  Slot& slot_of(uint32_t slot) { return const_cast<Slot&>(std::as_const(*this).slot_of(slot)); }
  void check_awaited(const Slot& slot, uint32_t worker, uint32_t round) const;
  void check(const Slot& slot, uint32_t worker, const Frame& frame) const;
  uint32_t elements_at(const Slot& slot, uint64_t position) const;
  void hold(Held& held, const Frame& frame) const;
  void sum(Slot& slot, uint32_t worker, const Frame& frame);
  void add(Version& version, size_t index, const BlockRef& block, size_t n);
  void add_coded(uint8_t* accumulator, const uint8_t* coded, size_t n, bool first);
  void add_integers(Version& version, size_t index, const uint8_t* block, size_t n, bool first);
  BlockRef with_no_numbers(Version& version, size_t index, uint64_t position, size_t n,
                           size_t used);
  static void gather_exponents(const Slot& slot, Frame* frame);
  uint8_t* accumulator(Version& version, size_t index) const;
  void note_ahead(Slot& slot, uint32_t worker, const Frame& frame);
  void finish_round(Slot& slot, Sink& sink);
  static uint64_t known(const Slot& slot);  // all workers have named all blocks below this
  void choose_window(Slot& slot);
  void open_window(Slot& slot, uint64_t hi);
  void take_sums(Slot& slot);
  void send_result(Slot& slot, Sink& sink);
  void contribute(Slot& slot, Sink& sink);

  const Layout& layout_;
  const BlockOps& ops_;
  const BlockCoder received_, to_send_;
  const uint32_t index_, workers_, stream_, streams_;
  const bool integers_, ordered_;
  const std::optional<uint32_t> below_;
  const size_t element_, accumulator_block_bytes_;
  const size_t sums_bytes_, packed_bytes_;  // of one version
  std::vector<Slot> slots_;
  size_t open_slots_;
  Frame said_;
  std::vector<uint64_t> united_;  // scratch
  std::vector<uint8_t> decoded_;  // a block, if there is a codec
};

}  // namespace omnihvd
