#include "algorithms/shared_memory/small_memory.h"

#include <algorithm>
#include <cstring>

#include "numeric/block_ops.h"
#include "numeric/keep_subnormals.h"

namespace omnihvd {
namespace {

constexpr size_t kPiece = 8 << 10;  // bytes to add at a time: they stay in the first cache
constexpr size_t kTimed = 8 << 10;  // fewer are copied too soon to tell stores apart

}  // namespace

void SmallMemory::sum(const void* in, void* out, SmallCall call) {
  ++call_;
  ++sum_;
  const uint64_t bytes = call.count() * size_of(call.dtype());
  const bool whole = is_added_whole(bytes, ranks());
  auto* const to = static_cast<uint8_t*>(out);
  const auto make = [&](const SmallStep& step) {
    if (step.awaited != Stamp::none) await(step.awaited);
    switch (step.work) {
      case SmallWork::give:
        give(static_cast<const uint8_t*>(in), bytes);
        head(rank_).calls[buffer_of(sum_)] = call;
        break;
      case SmallWork::add:
        check_same(call);
        add(to, call.dtype(), whole ? SmallShare{0, bytes} : share_of(bytes, rank_, ranks()),
            !whole);
        break;
      case SmallWork::take: take(to, bytes);
    }
    if (step.stamped != Stamp::none) stamp(step.stamped);
  };
  if (whole)
    std::for_each(kWholeSteps.begin(), kWholeSteps.end(), make);
  else
    std::for_each(kSharedSteps.begin(), kSharedSteps.end(), make);
}

void SmallMemory::pass(SmallCall call) {
  ++call_;
  head(rank_).apart_call.store(call.word);
  head(rank_).apart.store(call_);
  // A later stamp than this call's: that rank has made this call apart, too, and is ahead.
  for (int rank = 0; rank < ranks(); ++rank)
    if (head(rank).given.load() == call_) differs(rank, head(rank).calls[buffer_of(sum_ + 1)]);
}

bool SmallMemory::all_stamped(Stamp stamp) const {
  for (int rank = 0; rank < ranks(); ++rank)
    if (!has_stamped(rank, stamp)) return false;
  return true;
}

void SmallMemory::stamp(Stamp stamp) {
  SmallHead& mine = head(rank_);
  (stamp == Stamp::given ? mine.given : mine.added).store(call_);
  bell_.ring_if([&] { return all_stamped(stamp); });
}

void SmallMemory::check_same(SmallCall call) {
  for (int rank = 0; rank < ranks(); ++rank)
    if (const SmallCall theirs = head(rank).calls[buffer_of(sum_)]; theirs.word != call.word)
      differs(rank, theirs);
}

void SmallMemory::give(const uint8_t* in, uint64_t bytes) {
  if (bytes < kTimed)
    std::memcpy(buffer(rank_), in, bytes);
  else
    copy_timed(stores_, buffer(rank_), in, bytes);
}

// keep: the sums are for the other ranks, too.
void SmallMemory::add(uint8_t* out, DType dtype, SmallShare share, bool keep) {
  const BlockOps& ops = block_ops(dtype);
  const bool widens = accumulator_size_of(dtype) != size_of(dtype);
  alignas(64) uint8_t wide[2 * kPiece];
  const KeepSubnormals keeps;
  for (uint64_t at = share.begin; at < share.end; at += kPiece) {
    const size_t bytes = std::min<uint64_t>(kPiece, share.end - at), n = bytes / size_of(dtype);
    uint8_t* const sums = widens ? wide : out + at;
    ops.store(sums, buffer(0) + at, n);
    for (int rank = 1; rank < ranks(); ++rank) ops.add(sums, buffer(rank) + at, n);
    if (widens) ops.finish(out + at, sums, n);
    if (keep) std::memcpy(buffer(rank_) + at, out + at, bytes);
  }
}

void SmallMemory::take(uint8_t* out, uint64_t bytes) {
  for (int rank = 0; rank < ranks(); ++rank) {
    const SmallShare share = share_of(bytes, rank, ranks());
    if (rank != rank_)
      std::memcpy(out + share.begin, buffer(rank) + share.begin, share.end - share.begin);
  }
}

}  // namespace omnihvd
