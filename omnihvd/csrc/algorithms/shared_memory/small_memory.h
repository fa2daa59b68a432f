// The memory of small sums, as one rank uses it: buffers, stamps, and the bell that wakes ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "algorithms/shared_memory/gate.h"
#include "algorithms/shared_memory/small_steps.h"
#include "algorithms/shared_memory/stores.h"
#include "algorithms/small_call.h"
#include "numeric/dtype.h"

namespace omnihvd {

// At the head of each rank's part; all zero at first. Only this rank writes it.
//
// Memory order: all operations on these atomics are sequentially consistent, which is more than the
// data need and what the bell needs.
// - Data: a rank writes a buffer before it stores a stamp (a release), and reads the other ranks'
//   buffers after it has loaded theirs (an acquire). A stamp only grows, and one rank stores it. So
//   a load that is not below the awaited number reads that store or a later one of the same rank,
//   and all that this rank wrote before the awaited stamp is visible.
// - apart_call is stored before apart, and loaded after it: it is that call's, or a later one's.
// - left is stored after all stamps, and loaded before them: what a rank stamped before it left is
//   seen.
// - Bell: see there.
// On x86 a load is a plain one, and a store is an xchg. ARMv8 has weaker orders, and these
// instructions: a store is stlr, a load ldar, an addition ldaddal (or ldaxr and stlxr).
// - stlr keeps what comes before it: the buffer's bytes are there before the stamp.
// - ldar keeps what comes after it: no byte of a buffer is read before the stamp.
// - An ldar does not pass an earlier stlr, ldaddal or stlxr: the bell needs this of a stamp and
//   `sleepers`, and of `sleepers` and `rung`. An ldapr, as for acquire alone, might pass.
struct alignas(128) SmallHead {
  std::atomic<uint64_t> given, added;  // the number of the last call with this stamp
  std::atomic<uint64_t> apart;         // of the last call that this rank made by another algorithm
  std::atomic<uint64_t> apart_call;    // that call: a SmallCall
  SmallCall calls[kSmallBuffers];      // written with the buffer, and read as it is
  std::atomic<uint32_t> left;
};

// Wakes ranks that sleep until all stamps have come; the rank that stamps last rings.
//
// No ring is lost. A rank that stamps stores its stamp, then loads `sleepers`, then the other
// stamps. A rank that is about to sleep adds itself to `sleepers`, then loads `rung`, then the
// stamps. All of these are in one order. Take the rank with the last store of a stamp. If a sleeper
// came before it, the rank sees the sleeper and all stamps, and rings: the sleeper has loaded
// `rung` before, and the futex does not sleep on another value. Otherwise the sleeper loads the
// stamps after that store, and sees all.
class Bell {
 public:
  template <typename All>
  void ring_if(All all_stamped) {
    if (sleepers_.load() == 0 || !all_stamped()) return;
    rung_.fetch_add(1);
    futex_wake(&rung_);
  }
  template <typename All>
  void sleep_unless(All all_stamped, std::chrono::milliseconds at_most) {
    sleepers_.fetch_add(1);
    const uint32_t seen = rung_.load();
    if (!all_stamped()) futex_wait(&rung_, seen, at_most);
    sleepers_.fetch_sub(1);
  }

 private:
  std::atomic<uint32_t> rung_, sleepers_;
};

// One thread at a time; all ranks make the same calls in the same order. Its user decides how
// ranks wait, and what they do if they differ.
class SmallMemory {
 public:
  static constexpr size_t part_bytes(size_t most_bytes) {
    return sizeof(SmallHead) + kSmallBuffers * most_bytes;
  }
  // parts: of each rank, of part_bytes(most_bytes) each, all zero at first.
  SmallMemory(std::vector<uint8_t*> parts, Bell& bell, size_t most_bytes, int rank)
      : bell_(bell), rank_(rank), most_bytes_(most_bytes), parts_(std::move(parts)) {}
  virtual ~SmallMemory() = default;

 protected:
  // out = the sum over the ranks of `in` (in == out: in place), added in rank order. At most
  // most_bytes.
  void sum(const void* in, void* out, SmallCall call);
  // Tells the ranks that this one makes its next call by another algorithm. Calls differs() if one
  // makes a small sum there.
  void pass(SmallCall call);
  bool has_stamped(int rank, Stamp stamp) const {
    const SmallHead& theirs = head(rank);
    return (stamp == Stamp::given ? theirs.given : theirs.added).load() >= call_;
  }
  bool all_stamped(Stamp stamp) const;

  // Returns once all ranks have stamped this call.
  virtual void await(Stamp stamp) = 0;
  // Another rank makes another call. Throws.
  virtual void differs(int rank, SmallCall theirs) = 0;

  SmallHead& head(int rank) const { return *reinterpret_cast<SmallHead*>(parts_[size_t(rank)]); }
  int ranks() const { return int(parts_.size()); }
  uint64_t call() const { return call_; }  // the number of this call

  Bell& bell_;
  const int rank_;
  const size_t most_bytes_;

 private:
  uint8_t* buffer(int rank) const {
    return parts_[size_t(rank)] + sizeof(SmallHead) + buffer_of(sum_) * most_bytes_;
  }
  void give(const uint8_t* in, uint64_t bytes);
  void stamp(Stamp stamp);
  void check_same(SmallCall call);
  void add(uint8_t* out, DType dtype, SmallShare share, bool keep);
  void take(uint8_t* out, uint64_t bytes);

  const std::vector<uint8_t*> parts_;
  uint64_t call_ = 0;  // of all calls
  uint64_t sum_ = 0;   // of the small ones
  Stores stores_;
};

}  // namespace omnihvd
