// A datagram of in-network aggregation: one block of one slot (docs/in-network.md). Little endian,
// as are the machines on which this runs. C, since the XDP program shares it.
#ifndef OMNIHVD_INLINE_PACKET_H
#define OMNIHVD_INLINE_PACKET_H

#include <linux/types.h>

#define INLINE_ELEMENTS 256  // per block
#define INLINE_BLOCK_BYTES (4 * INLINE_ELEMENTS)
#define INLINE_CODE_BYTES INLINE_ELEMENTS  // a block of codes (integers.h)
#define INLINE_WORKERS 32                  // per job, at most: bits of a mask
#define INLINE_NONE 0xFFFFFFFFu            // no block

enum inline_kind {
  INLINE_CONTRIBUTION = 1,
  INLINE_RESULT,
  INLINE_JOIN,  // to user space: a tag follows this kind and the next three
  INLINE_WELCOME,
  INLINE_REFUSAL,  // flags: the reason
  INLINE_LEAVE,
  INLINE_WAIT,      // to a join: the aggregator is full, and asks whether its jobs still live
  INLINE_QUESTION,  // to a worker; its host reports if the worker has ended
};

enum inline_numbers {  // a job's element type, and how its elements are added
  INLINE_INT32,        // wraps around
  INLINE_FLOAT32,
  INLINE_FPISA,    // float32, in FPISA registers (docs/arithmetic.md)
  INLINE_FPISA_A,  // the same, approximately
  INLINE_NATURAL,  // int32, and all workers send codes
  INLINE_NUMBERS,
};

enum inline_flags {
  INLINE_BLOCK = 1,   // the datagram carries the block's elements
  INLINE_REPEAT = 2,  // a retransmission, as long as with a block: the answer reuses its room. In a
                      // welcome: it answers a repeated join
  INLINE_THERE = 4,   // in a welcome: the awaited result is complete
  INLINE_CODES = 8,   // it has room for codes, not int32. In a welcome: workers may send them
};

struct inline_head {
  __u64 key;  // the job's; in a join: the session
  __u8 kind;
  __u8 flags;
  __u16 job;  // its index at the aggregator
  __u16 worker;
  __u16 slot;     // in a welcome: how many there are; in a repeated join: one that is open
  __u32 round;    // of the slot, counted from the job's start; in a join: workers
  __u32 block;    // being summed; INLINE_NONE: none, an opening. In a welcome: the group; in a
                  // repeated join: the round that the slot awaits; in its welcome: the workers that
                  // this round waits for, as bits
  __u32 next;     // the sender's next non-zero block of the slot; in a result: the smallest of all
  __u8 exponent;  // of that block: the largest over the workers that have it
  __u8 numbers;   // in a join
  __u16 what;  // 8 bits of what the worker sums, and their inverse; in a result: those of all, ORed
};

#define INLINE_HEAD_BYTES 32
#define INLINE_FULL_BYTES (INLINE_HEAD_BYTES + INLINE_BLOCK_BYTES)
#define INLINE_CODED_BYTES (INLINE_HEAD_BYTES + INLINE_CODE_BYTES)

#endif
