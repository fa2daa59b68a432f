// A worker of an in-network aggregator: sums tensors block by block over the slots of its job,
// whatever the network does to datagrams. Pure: datagrams in, datagrams out; times are arguments,
// in microseconds of a monotonic clock.
//
// The worker takes results in order. A result from a later round shows that the awaited one is
// lost, so the worker asks for it at once. Otherwise it repeats a contribution after a time-out,
// which follows the measured round trips (RFC 6298, with a smaller minimum) and doubles at each
// repeat. The next contributions keep the longer time-out until a round trip is measured, else one
// above it never would be. An opening is not measured: it lasts until the last worker begins. As
// many datagrams are in flight as there are slots.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "innetwork/packet.h"
#include "innetwork/round_trip.h"
#include "innetwork/tensor.h"

namespace omnihvd {

struct SlotCounts {
  uint64_t sent = 0;                            // datagrams, retransmissions included
  uint64_t again = 0;                           // retransmissions
  uint64_t with_block = 0;                      // datagrams that carried a block
  uint64_t received = 0;                        // results
  uint64_t refused = 0;                         // datagrams that were not a result for this worker
  uint64_t bytes_sent = 0, bytes_received = 0;  // in datagrams, without UDP headers
};

class SlotWorker {
 public:
  struct Place {
    uint64_t key;
    uint16_t job, worker, slots;
  };
  // shortest, longest: time-outs in microseconds; three times `shortest` before the first
  // measurement.
  SlotWorker(const Place& place, uint64_t shortest, uint64_t longest);

  // Begins the next sum, after the last has ended. The tensor must outlive the sum. what: the same
  // where workers have tensors that may be summed. Each slot compares 8 of its bits.
  void begin(uint64_t now, InlineTensor& tensor, uint64_t what = 0);
  // Writes the next datagram to send now to out[INLINE_FULL_BYTES]; 0: none.
  size_t next(uint64_t now, uint8_t* out);
  // Takes a result. Returns false, without effect, if it is not a result for this worker.
  bool take(uint64_t now, const uint8_t* data, size_t size);
  // When next() has something to send even if nothing arrives; none: never.
  std::optional<uint64_t> wake_at() const;
  bool done() const { return open_ == 0; }
  bool differs() const { return differs_; }  // has another worker something else to sum?
  // When the sum began, or when a result last advanced it.
  uint64_t moved_at() const { return moved_at_; }
  // A slot that is not done, and the round that it waits for.
  std::pair<uint16_t, uint32_t> awaited() const;

  // Blocks of the current or last sum: sent by this worker, and sent by any worker.
  uint64_t own_blocks() const { return own_; }
  uint64_t united_blocks() const { return united_; }
  const SlotCounts& counts() const { return counts_; }
  uint64_t round_trip() const { return trips_.smoothed(); }  // 0: not measured yet

 private:
  struct Slot {
    uint32_t round = 0;
    uint32_t block = INLINE_NONE;  // the awaited block
    uint32_t next = INLINE_NONE;   // this worker's next block: after `block` if it owns that
    uint8_t exponent = 0;          // of `block`, over all workers
    uint8_t next_exponent = 0;     // of `next`
    bool open = false, owner = false, queued = false, repeat = false, asked = false;
    uint32_t tries = 0;
    uint64_t sent_at = 0, due = 0;
  };
  void name_next(Slot& slot, uint64_t from);
  void queue(uint32_t slot, bool repeat);
  void queue_overdue(uint64_t now);
  size_t write(uint64_t now, uint32_t slot, uint8_t* out);
  bool fits(uint32_t slot, const inline_head& head, size_t size) const;
  bool accept(uint64_t now, const uint8_t* data, size_t size);
  void set_due(Slot& slot, uint64_t now);

  const Place place_;
  const uint64_t shortest_, longest_;
  InlineTensor* tensor_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<uint32_t> queue_;  // a ring of the slots with something to send
  size_t first_ = 0, queued_ = 0;
  uint32_t open_ = 0;
  uint64_t what_ = 0;
  bool differs_ = false;
  uint64_t check_at_ = 0;  // nothing is overdue before
  uint64_t moved_at_ = 0;
  RoundTrip trips_;
  uint32_t backed_off_ = 0;  // time-outs in a row for the last result, until a trip is measured
  uint64_t own_ = 0, united_ = 0;
  SlotCounts counts_;
};

}  // namespace omnihvd
