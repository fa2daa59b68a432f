// A worker of an aggregator in the data path: sums tensors block by block over the slots of its
// job, whatever the network does to datagrams. Pure: datagrams in, datagrams out; times are
// arguments, microseconds of a clock that never goes back.
//
// Results are taken in order; one from later on tells that the awaited one is lost, which is asked
// for at once. Otherwise what waits too long is repeated: after the measured round trips (RFC
// 6298, but for its least), then half as often each time. An opening measures nothing: it takes as
// long as the last worker to begin. As many datagrams are under way as there are slots.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "inline/packet.h"

namespace omnihvd {

// What is summed, in place: blocks of INLINE_ELEMENTS elements, as integers of a scale that all
// workers know. Blocks that no worker has are left as they are: zeros.
class InlineTensor {
 public:
  virtual ~InlineTensor() = default;
  virtual uint32_t blocks() const = 0;
  // Whether the block has a non-zero element.
  virtual bool has(uint32_t block) const = 0;
  virtual uint8_t exponent(uint32_t block) const = 0;  // of its largest magnitude, as float32's
  // out, in: INLINE_BLOCK_BYTES. exponent: the largest of all workers who have the block.
  virtual void read(uint32_t block, uint8_t exponent, uint8_t* out) const = 0;
  virtual void write(uint32_t block, uint8_t exponent, const uint8_t* in) = 0;
};

// int32, which has no scale; sums wrap around.
class InlineIntegers final : public InlineTensor {
 public:
  InlineIntegers(int32_t* data, uint64_t count) : data_(data), count_(count) {}
  uint32_t blocks() const override;
  bool has(uint32_t block) const override;
  uint8_t exponent(uint32_t) const override { return 0; }
  void read(uint32_t block, uint8_t exponent, uint8_t* out) const override;
  void write(uint32_t block, uint8_t exponent, const uint8_t* in) override;

 private:
  uint32_t elements(uint32_t block) const;
  int32_t* const data_;
  const uint64_t count_;
};

class SlotWorker {
 public:
  struct Place {
    uint64_t key;
    uint16_t job, worker, slots;
  };
  // shortest, longest: time-outs in microseconds; three of the former before anything is measured.
  SlotWorker(const Place& place, uint64_t shortest, uint64_t longest);

  // The next sum, after the last has ended. dense: all blocks are sent, as SwitchML does. The
  // tensor must outlive the sum.
  void begin(uint64_t now, InlineTensor& tensor, bool dense);
  // The next datagram that is to go now, written to out[INLINE_FULL_BYTES]; 0: none.
  size_t next(uint64_t now, uint8_t* out);
  // False: it is no result for this worker, and has no effect.
  bool take(uint64_t now, const uint8_t* data, size_t size);
  // next() has nothing before that time unless something comes; none: never.
  std::optional<uint64_t> wake_at() const;
  bool done() const { return open_ == 0; }
  // A slot that is not done, and the round whose result it waits for.
  std::pair<uint16_t, uint32_t> awaited() const;

  uint64_t sent() const { return sent_; }            // datagrams, those sent again included
  uint64_t again() const { return again_; }          // of them
  uint64_t blocks_sent() const { return blocks_; }   // datagrams with a block
  uint64_t round_trip() const { return smoothed_; }  // 0: not known yet

 private:
  struct Slot {
    uint32_t round = 0;
    uint32_t block = INLINE_NONE;  // that is awaited
    uint32_t next = INLINE_NONE;   // of this worker's: after `block` if it owns that
    uint8_t exponent = 0;          // of `block`, of all
    uint8_t next_exponent = 0;     // of `next`
    bool open = false, owner = false, queued = false, repeat = false, asked = false;
    uint32_t tries = 0;
    uint64_t sent_at = 0, due = 0;
  };
  uint32_t find(uint32_t from) const;
  void queue(uint32_t slot, bool repeat);
  void queue_overdue(uint64_t now);
  size_t write(uint64_t now, uint32_t slot, uint8_t* out);
  bool fits(uint32_t slot, const inline_head& head, size_t size) const;
  void measure(uint64_t trip);
  uint64_t patience(const Slot& slot) const;
  void set_due(Slot& slot, uint64_t now);

  const Place place_;
  const uint64_t shortest_, longest_;
  InlineTensor* tensor_ = nullptr;
  bool dense_ = false;
  std::vector<Slot> slots_;
  std::vector<uint32_t> queue_;  // a ring of slots that have something to send
  size_t first_ = 0, queued_ = 0;
  uint32_t open_ = 0;
  uint64_t check_at_ = 0;  // none is overdue before
  uint64_t smoothed_ = 0, variation_ = 0;
  uint64_t sent_ = 0, again_ = 0, blocks_ = 0;
};

}  // namespace omnihvd
