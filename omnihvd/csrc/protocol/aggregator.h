// An aggregator's side of one collective, over the slots of one stream: frames in, frames out.
//
// Aggregators may be a tree (tree.h): one below others sums what its members have, as any does,
// says that to the one above as a worker would, and its members get the results of the topmost as
// they are. All of a tree are in the same round of a slot, and who has nothing in a window is
// silent, on each level.
//
// Memory: for each slot two versions of `window` accumulators, whatever the tensor and the number
// of workers; and for each worker and slot the positions it has named ahead: about as many as a
// window has blocks. Two versions, because a result is still being sent from one while the next
// round, which only some workers take part in, is summed into the other.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "protocol/block_coder.h"
#include "protocol/block_ops.h"
#include "protocol/frame.h"
#include "protocol/frame_bytes.h"
#include "protocol/layout.h"

namespace omnihvd {

class Aggregator {
 public:
  // Takes the results that are to be sent to all members, or the contributions to the one above.
  class Sink {
   public:
    virtual ~Sink() = default;
    // `frame` is valid during the call; the memory that its blocks refer to, until
    // released(slot, round) is called, once, at any time but from within result(). Blocks with a
    // home are in the memory of this process's worker, which is to have the same result. In a
    // reduce the owner is to have it, and the others what without_sums() leaves.
    virtual void result(const Frame& frame) = 0;
    // The same for sums that go to the aggregator above.
    virtual void contribution(const Frame&) { OMNIHVD_INVARIANT(!"nothing is above"); }
  };

  // ordered: contributions are added in rank order, so that runs reproduce bit for bit; those that
  // come out of order are copied and wait. (Sums of integers do so in any order: none waits.)
  // below: it is below another. Whose random numbers its codes take: no rank's and no other's.
  Aggregator(const Layout& layout, uint32_t index, uint32_t workers, uint32_t stream,
             uint32_t streams, bool ordered, std::optional<uint32_t> below = {});
  ~Aggregator();

  // Throws Error, and changes nothing, when the contribution is none that this aggregator waits
  // for: nothing is trusted but the sizes of the blocks, which MessageReader has checked. (Of codes
  // without loss that hold nonsense, some may have been added.)
  void on_contribution(uint32_t worker, const Frame& frame, Sink& sink);

  // Below others: a result of the one above, which is for all members, too, and goes on to them in
  // the order of rounds: messages between aggregators must not overtake each other. Throws Error,
  // and changes nothing, when it is none that this aggregator waits for: `frame` is not trusted.
  void on_result(const Frame& frame);

  // The positions that this worker has named in the slot's window: those of its contribution to
  // this round. Throws Error unless that is awaited. Valid until the next call that is not const.
  Positions named(uint32_t worker, uint32_t slot, uint32_t round) const;

  // The memory of this round's frame is no longer referred to. May produce the next result.
  void released(uint32_t slot, uint32_t round, Sink& sink);

  // All slots have ended; results may still wait for released().
  bool done() const { return open_slots_ == 0; }
  // Workers that some slot waits for: not those who have spoken and wait for lower ranks.
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
  static uint64_t known(const Slot& slot);  // all workers have named all blocks below
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
