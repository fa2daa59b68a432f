// An aggregator in the kernel's receive path (XDP). It adds contributions to the slots of slot.h,
// and sends results out where the last contribution came in, as Ethernet multicast; a switch or
// bridge copies them to all workers. A result replaces the datagram that completed it or asked for
// it: XDP can neither copy nor create a packet. All other packets go on to the kernel, and so to
// the sockets of user space.
//
// The kernel's verifier checks a GLOBAL function once, for any arguments, not again at each call:
// otherwise it would follow each loop along every path that leads there. A GLOBAL function must not
// be called under a bpf_spin_lock, so slots have a lock of their own.
//
// Unlike a socket, it does not verify UDP checksums, because sockets on the same machine leave them
// to the device. It relies on the link's checksum and sends none.
// clang-format off: the others need its types
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_helpers.h>

#include "innetwork/slot.h"
#include "innetwork/xdp/aggregator_maps.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct inline_xdp_constants constants = {};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct inline_xdp_job);
} jobs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct inline_xdp_slot);
} slots SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, INLINE_XDP_COUNTS);
  __type(key, __u32);
  __type(value, __u64);
} counts SEC(".maps");

#define INLINED static inline __attribute__((always_inline))
#define GLOBAL __attribute__((noinline))

INLINED int counted(__u32 what) {
  __u64* const count = bpf_map_lookup_elem(&counts, &what);
  if (count) *count += 1;
  return XDP_DROP;
}

// Takes the slot's lock; false if another core holds it. A holder finishes within microseconds,
// since nothing interrupts XDP on its core. If it does not, the datagram is dropped like a lost
// one.
GLOBAL int lock(struct inline_xdp_slot* slot) {
  if (!slot) return 0;
#pragma clang loop unroll(disable)
  for (int i = 0; i < INLINE_XDP_TRIES; ++i)
    if (!__sync_val_compare_and_swap(&slot->busy, 0, 1)) return 1;
  return 0;
}

GLOBAL int decide(struct inline_slot* slot, __u32 workers, const struct inline_head* head,
                  struct slot_decision* decision) {
  if (!slot || !head || !decision) return 0;
  slot_take(slot, workers, head, decision);
  return 1;
}

// Integers. Blocks are copied 8 bytes at a time. Loops are unrolled, as BPF has no vectors.
GLOBAL int copy_block(struct inline_block* to, const struct inline_block* from) {
  if (!to || !from) return 0;
  __u64* const out = (__u64*)to;
  const __u64* const in = (const __u64*)from;
#pragma unroll
  for (int i = 0; i < INLINE_ELEMENTS / 2; ++i) out[i] = in[i];
  return 1;
}

GLOBAL int add_block(struct inline_block* sums, const struct inline_block* block) {
  if (!sums || !block) return 0;
#pragma unroll
  for (int i = 0; i < INLINE_ELEMENTS; ++i) sums->elements[i] += block->elements[i];
  return 1;
}

GLOBAL int add_and_copy_block(struct inline_block* sums, struct inline_block* block) {
  if (!sums || !block) return 0;
#pragma unroll
  for (int i = 0; i < INLINE_ELEMENTS; ++i)
    block->elements[i] = sums->elements[i] += block->elements[i];
  return 1;
}

// FPISA's registers. Loops are not unrolled: each iteration has many instructions.
GLOBAL int store_registers(struct inline_registers* sums, const struct inline_block* block) {
  if (!sums || !block) return 0;
#pragma clang loop unroll(disable)
  for (int i = 0; i < INLINE_ELEMENTS; ++i) sums->of[i] = fpisa_register_of(block->elements[i]);
  return 1;
}

GLOBAL int add_registers(struct inline_registers* sums, const struct inline_block* block) {
  if (!sums || !block) return 0;
#pragma clang loop unroll(disable)
  for (int i = 0; i < INLINE_ELEMENTS; ++i)
    sums->of[i] = fpisa_add(sums->of[i], fpisa_register_of(block->elements[i]));
  return 1;
}

GLOBAL int add_registers_approximately(struct inline_registers* sums,
                                       const struct inline_block* block) {
  if (!sums || !block) return 0;
#pragma clang loop unroll(disable)
  for (int i = 0; i < INLINE_ELEMENTS; ++i)
    sums->of[i] = fpisa_add_approximately(sums->of[i], fpisa_register_of(block->elements[i]));
  return 1;
}

GLOBAL int read_registers(struct inline_block* block, const struct inline_registers* sums) {
  if (!block || !sums) return 0;
#pragma clang loop unroll(disable)
  for (int i = 0; i < INLINE_ELEMENTS; ++i) block->elements[i] = fpisa_bits_of(sums->of[i]);
  return 1;
}

INLINED void sum_integers(struct inline_block* sums, struct inline_block* block,
                          const struct slot_decision* decision, int wanted) {
  if (decision->verdict == SLOT_STORE)
    copy_block(sums, block);
  else if (decision->verdict == SLOT_ADD && decision->complete)
    add_and_copy_block(sums, block);
  else if (decision->verdict == SLOT_ADD)
    add_block(sums, block);
  else if (wanted)
    copy_block(block, sums);
}

INLINED void sum_registers(struct inline_registers* sums, struct inline_block* block,
                           const struct slot_decision* decision, int wanted, __u32 numbers) {
  if (decision->verdict == SLOT_STORE)
    store_registers(sums, block);
  else if (decision->verdict == SLOT_ADD && numbers == INLINE_FPISA_A)
    add_registers_approximately(sums, block);
  else if (decision->verdict == SLOT_ADD)
    add_registers(sums, block);
  if (wanted) read_registers(block, sums);
}

// The packet belongs to the job. Turns it into the result if there is one to send.
INLINED int take(struct xdp_md* context, struct inline_frame* packet, int full,
                 struct inline_xdp_job* job) {
  const struct inline_head head = packet->head;
  const __u32 index = (__u32)head.job * constants.slots_per_job + head.slot;
  struct inline_xdp_slot* const slot = bpf_map_lookup_elem(&slots, &index);
  if (!slot) return counted(INLINE_XDP_IMPOSSIBLE);
  struct slot_decision decision = {};
  if (!lock(slot)) return counted(INLINE_XDP_EARLY);
  decide(&slot->state, job->workers, &head, &decision);
  const int answer = decision.verdict == SLOT_ANSWER;
  const __u32 version = decision.version & (INLINE_VERSIONS - 1);
  const struct inline_result result = slot->state.results[version];
  if (full) {
    struct inline_registers* const sums = &slot->sums[version];
    struct inline_block* const block = (void*)packet + FRAME_SHORT_BYTES;
    const int wanted = result.has_block && (answer || decision.complete);
    if (job->numbers == INLINE_INT32)
      sum_integers((struct inline_block*)sums, block, &decision, wanted);
    else
      sum_registers(sums, block, &decision, wanted, job->numbers);
  }
  __sync_lock_test_and_set(&slot->busy, 0);

  if (decision.verdict >= SLOT_DUPLICATE)
    return counted(INLINE_XDP_DUPLICATE + (decision.verdict - SLOT_DUPLICATE));
  if (!answer) counted(INLINE_XDP_TAKEN);
  if (!answer && !decision.complete) return XDP_DROP;
  counted(answer ? INLINE_XDP_ANSWERS : INLINE_XDP_RESULTS);
  packet->head.kind = INLINE_RESULT;
  packet->head.flags = result.has_block ? INLINE_BLOCK : 0;
  packet->head.round = decision.round;
  packet->head.block = result.block;
  packet->head.next = result.next;
  packet->head.exponent = result.exponent;
  packet->head.what = result.what;
  frame_turn(packet, &constants.own, answer ? 0 : &job->group,
             result.has_block ? INLINE_FULL_BYTES : INLINE_HEAD_BYTES);
  if (full && !result.has_block && bpf_xdp_adjust_tail(context, -(int)INLINE_BLOCK_BYTES))
    return XDP_DROP;
  return XDP_TX;
}

SEC("xdp")
int aggregate(struct xdp_md* context) {
  void* const end = (void*)(long)context->data_end;
  struct inline_frame* const packet = (void*)(long)context->data;
  if ((void*)packet + FRAME_BYTES + sizeof(__u64) + 1 > end) return XDP_PASS;
  if (!frame_is_contribution(packet, &constants.own)) return XDP_PASS;
  if ((void*)packet + FRAME_SHORT_BYTES > end) return counted(INLINE_XDP_SHORT);
  const int codes = packet->head.flags & INLINE_CODES;
  const __u32 bytes = codes                ? FRAME_BYTES + INLINE_CODED_BYTES
                      : packet->head.flags ? FRAME_FULL_BYTES
                                           : FRAME_SHORT_BYTES;
  const __u32 said = FRAME_BYTES - sizeof(struct udphdr) + FRAME_BIG_ENDIAN(packet->udp.len);
  const __u32 size = (__u32)(end - (void*)packet);
  if (size < bytes || said < bytes) return counted(INLINE_XDP_SHORT);
  if (size > bytes || said > bytes) return counted(INLINE_XDP_LONG);
  const __u32 index = packet->head.job;
  struct inline_xdp_job* const job = bpf_map_lookup_elem(&jobs, &index);
  if (!job || !job->workers) return counted(INLINE_XDP_OTHER_JOB);
  if (packet->head.key != job->key) return counted(INLINE_XDP_FORGED);
  job->contributions += 1;
  if (packet->head.worker >= job->workers) return counted(INLINE_XDP_STRANGER);
  // No result would fit in the room that codes take.
  if (codes || packet->head.slot >= constants.slots_per_job) return counted(INLINE_XDP_IMPOSSIBLE);
  if ((void*)packet + FRAME_FULL_BYTES > end) return take(context, packet, 0, job);
  return take(context, packet, 1, job);
}
