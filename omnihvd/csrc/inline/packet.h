// A datagram of an aggregator in the data path: one block of one slot (docs/in-network.md). Little
// endian, as the machines are on which this runs. C, since the XDP program has it, too.
#ifndef OMNIHVD_INLINE_PACKET_H
#define OMNIHVD_INLINE_PACKET_H

#include <linux/types.h>

#define INLINE_ELEMENTS 256  // of a block
#define INLINE_BLOCK_BYTES (4 * INLINE_ELEMENTS)
#define INLINE_WORKERS 32        // of a job, at most: bits of a mask
#define INLINE_NONE 0xFFFFFFFFu  // no block

enum inline_kind {
  INLINE_CONTRIBUTION = 1,
  INLINE_RESULT,
  INLINE_JOIN,  // to user space: a tag follows these four
  INLINE_WELCOME,
  INLINE_REFUSAL,  // flags: why
  INLINE_LEAVE,
  INLINE_WAIT,      // to a join: the aggregator has no place, and asks whether its jobs still live
  INLINE_QUESTION,  // to a worker, whose host says if it has ended
};

enum inline_numbers {  // a job's: what the elements of its datagrams are, and how they are added
  INLINE_INT32,        // wraps around
  INLINE_FLOAT32,
  INLINE_FPISA,    // float32, in registers of FPISA (docs/arithmetic.md)
  INLINE_FPISA_A,  // the same, approximately
  INLINE_NUMBERS,
};

enum inline_flags {
  INLINE_BLOCK = 1,   // the block's elements are those of the datagram, which has room for them
  INLINE_REPEAT = 2,  // sent again: as long as with a block, for an answer needs the room; of a
                      // welcome: to a repeated join
  INLINE_THERE = 4,   // of a welcome: the result that the worker awaits is complete
};

struct inline_head {
  __u64 key;  // the job's; of a join: the session
  __u8 kind;
  __u8 flags;
  __u16 job;  // its index at the aggregator
  __u16 worker;
  __u16 slot;     // of a welcome: how many there are; of a repeated join: one that is open
  __u32 round;    // of the slot, counted from the job's begin; of a join: workers
  __u32 block;    // that is being summed; INLINE_NONE: none, an opening. Of a welcome: the group;
                  // of a repeated join: the round that the slot awaits, and of its welcome: the
                  // workers for whom that round waits, bits
  __u32 next;     // the sender's next non-zero block of the slot; of a result: the least of all
  __u8 exponent;  // of that block: the largest of those workers who have it
  __u8 numbers;   // of a join
  __u8 reserved[2];
};

#define INLINE_HEAD_BYTES 32
#define INLINE_FULL_BYTES (INLINE_HEAD_BYTES + INLINE_BLOCK_BYTES)

#endif
