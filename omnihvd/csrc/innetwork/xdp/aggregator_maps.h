// The maps that the XDP program shares with its loader. C.
#ifndef OMNIHVD_INLINE_XDP_AGGREGATOR_MAPS_H
#define OMNIHVD_INLINE_XDP_AGGREGATOR_MAPS_H

#include <linux/bpf.h>

#include "innetwork/fpisa_register.h"
#include "innetwork/slot.h"
#include "innetwork/xdp/frame.h"

struct inline_xdp_constants {  // the program's constants, set before it is loaded
  struct inline_place own;
  __u32 slots_per_job;
};

struct inline_xdp_job {
  __u64 key;
  __u64 contributions;
  __u32 workers;  // 0: there is no such job
  __u32 numbers;
  struct inline_place group;
};

struct inline_block {
  __u32 elements[INLINE_ELEMENTS];
};

struct inline_registers {
  struct fpisa_register of[INLINE_ELEMENTS];
};

struct inline_xdp_slot {
  struct inline_slot state;
  __u32 busy;  // locked
  // [version]; an integer block takes the first half.
  struct inline_registers sums[INLINE_VERSIONS] __attribute__((aligned(8)));
};

#define INLINE_XDP_TRIES 1000  // attempts to lock a slot

enum inline_xdp_count {  // in the order of InlineCount (slot_aggregator.h)
  INLINE_XDP_TAKEN,
  INLINE_XDP_RESULTS,
  INLINE_XDP_ANSWERS,
  INLINE_XDP_DUPLICATE,  // from here on in the order of slot_verdict
  INLINE_XDP_OLD,
  INLINE_XDP_EARLY,
  INLINE_XDP_IMPOSSIBLE,
  INLINE_XDP_SHORT,
  INLINE_XDP_LONG,
  INLINE_XDP_FORGED,
  INLINE_XDP_OTHER_JOB,
  INLINE_XDP_STRANGER,
  INLINE_XDP_COUNTS,
};

#endif
