// How in-network aggregation processes a contribution to a slot: OmniReduce's Algorithm 1 (SIGCOMM
// 2021) over datagrams that are lost, repeated and reordered. C without data-dependent loops and
// without calls, since user space and the XDP program share this code.
//
// A slot sums its blocks one at a time, in rounds. With each contribution a worker names its next
// non-zero block, so the slot knows which workers will send in a round: its owners. The last
// owner's contribution completes the round: the result goes to all workers, and names the next
// block, the smallest that any worker has. A sum opens with a round without a block, which all
// workers own; after a sum's last result the slot's next round is the opening of the next sum.
//
// The slot keeps the results of the last INLINE_VERSIONS rounds for workers that have not received
// them. A worker that does not own rounds reports now and then which round it has reached
// (`heard`). All workers must be past a result before it is overwritten. The slot drops
// contributions that come before that, and workers repeat them.
#ifndef OMNIHVD_INLINE_SLOT_H
#define OMNIHVD_INLINE_SLOT_H

#include <linux/types.h>

#include "innetwork/packet.h"

#define SLOT_FUNCTION static inline __attribute__((always_inline))

#define INLINE_VERSIONS 8     // a power of two
#define INLINE_HEARD_EVERY 2  // rounds: how often workers send even if they own none

struct inline_result {
  __u32 block, next;
  __u8 exponent, has_block;
  __u16 what;
};

struct inline_slot {
  __u32 round;                  // that is being summed
  __u32 block;                  // the block of that round
  __u32 owners;                 // bits: workers that must send
  __u32 seen;                   // bits: owners that have sent
  __u32 heard[INLINE_WORKERS];  // the latest round in which each worker has sent
  __u32 next[INLINE_WORKERS];
  __u8 exponent[INLINE_WORKERS];
  __u16 what, reserved;                           // of this round's contributions
  struct inline_result results[INLINE_VERSIONS];  // [round % versions]
};

// The fate of a contribution. Verdicts from SLOT_DUPLICATE on refuse it; they are counted.
enum slot_verdict {
  SLOT_NOTED,   // nothing else to do
  SLOT_STORE,   // the block becomes the sum `version`
  SLOT_ADD,     // the block is added to it
  SLOT_ANSWER,  // the sender lacks the result `version`: send it
  SLOT_DUPLICATE,
  SLOT_OLD,
  SLOT_EARLY,       // a worker may still need the result stored there
  SLOT_IMPOSSIBLE,  // no correct worker sends this
};

struct slot_decision {
  __u32 verdict;
  __u32 round;     // of the result
  __u32 version;   // which sum
  __u32 complete;  // send the result to all
};

SLOT_FUNCTION __u32 slot_all(__u32 workers) { return workers >= 32 ? ~0u : (1u << workers) - 1; }

SLOT_FUNCTION void slot_reset(struct inline_slot* s, __u32 workers) {
  for (__u32 w = 0; w < INLINE_WORKERS; ++w) {
    s->heard[w] = 0;
    s->next[w] = INLINE_NONE;
    s->exponent[w] = 0;
  }
  s->round = 0;
  s->block = INLINE_NONE;
  s->owners = slot_all(workers);
  s->seen = 0;
  s->what = 0;
}

// Could a worker still ask for the result that this round's result will overwrite?
SLOT_FUNCTION int slot_is_needed(const struct inline_slot* s, __u32 workers) {
  for (__u32 w = 0; w < INLINE_WORKERS; ++w)
    if (w < workers && s->round - s->heard[w] >= INLINE_VERSIONS) return 1;
  return 0;
}

// The workers that the round waits for, as bits: its owners, or those that may still need an old
// result.
SLOT_FUNCTION __u32 slot_missing(const struct inline_slot* s, __u32 workers) {
  __u32 behind = 0;
  for (__u32 w = 0; w < INLINE_WORKERS; ++w)
    if (!s->seen && w < workers && s->round - s->heard[w] >= INLINE_VERSIONS) behind |= 1u << w;
  return behind ? behind : s->owners & ~s->seen;
}

SLOT_FUNCTION void slot_complete(struct inline_slot* s, __u32 workers, __u32 has_block) {
  __u32 least = INLINE_NONE, owners = 0;
  __u8 exponent = 0;
  for (__u32 w = 0; w < INLINE_WORKERS; ++w) {
    if (w >= workers) break;
    const __u32 next = s->next[w];
    if (next < least) {
      least = next;
      owners = 0;
      exponent = 0;
    }
    if (next == least) {
      owners |= 1u << w;
      if (s->exponent[w] > exponent) exponent = s->exponent[w];
    }
  }
  struct inline_result* result = &s->results[s->round % INLINE_VERSIONS];
  result->block = s->block;
  result->next = least;
  result->exponent = exponent;
  result->has_block = (__u8)has_block;
  result->what = s->what;
  s->round += 1;
  s->block = least;
  s->owners = owners;
  s->seen = 0;
  s->what = 0;
}

// A contribution to a round that is complete.
SLOT_FUNCTION __u32 slot_late(struct inline_slot* s, __u32 worker, __u32 round, __u32 flags) {
  const __u32 age = s->round - round;
  if (age > INLINE_VERSIONS || (age == INLINE_VERSIONS && s->seen)) return SLOT_OLD;
  __u32 verdict = SLOT_DUPLICATE;
  if ((__s32)(round - s->heard[worker]) > 0) {
    s->heard[worker] = round;
    verdict = SLOT_NOTED;
  }
  if (flags & INLINE_REPEAT) verdict = SLOT_ANSWER;
  return verdict;
}

SLOT_FUNCTION __u32 slot_current(struct inline_slot* s, __u32 workers, __u32 worker,
                                 const struct inline_head* head, __u32* complete) {
  const __u32 bit = 1u << worker, has_block = head->flags & INLINE_BLOCK;
  s->heard[worker] = s->round;
  if (head->block != s->block) return SLOT_IMPOSSIBLE;
  if (!(s->owners & bit)) return has_block ? SLOT_IMPOSSIBLE : SLOT_NOTED;
  if (s->seen & bit) return SLOT_DUPLICATE;
  if (has_block ? s->block == INLINE_NONE || head->next <= s->block : s->block != INLINE_NONE)
    return SLOT_IMPOSSIBLE;
  const __u32 verdict = !has_block ? SLOT_NOTED : s->seen ? SLOT_ADD : SLOT_STORE;
  if (!s->seen && slot_is_needed(s, workers)) return SLOT_EARLY;
  s->seen |= bit;
  s->next[worker] = head->next;
  s->exponent[worker] = head->exponent;
  s->what |= head->what;
  *complete = s->seen == s->owners;
  if (*complete) slot_complete(s, workers, has_block);
  return verdict;
}

// head: of a contribution to the slot's job, from one of the job's workers. Nothing else in the
// head is trusted.
SLOT_FUNCTION void slot_take(struct inline_slot* s, __u32 workers, const struct inline_head* head,
                             struct slot_decision* decision) {
  const __u32 worker = head->worker % INLINE_WORKERS, round = head->round;
  decision->round = round;
  decision->version = round % INLINE_VERSIONS;
  decision->complete = 0;
  if (round == s->round)
    decision->verdict = slot_current(s, workers, worker, head, &decision->complete);
  else if ((__s32)(s->round - round) > 0)
    decision->verdict = slot_late(s, worker, round, head->flags);
  else
    decision->verdict = SLOT_IMPOSSIBLE;
}

#endif
