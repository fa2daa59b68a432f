// The sums of an aggregator in the kernel's receive path (XDP): contributions are added to the
// slots of slot.h, results go out where the last contribution came in, as Ethernet multicast, which
// a switch or bridge copies to all workers. A result takes the place of the datagram that completed
// it, or that asked for it: XDP can neither copy nor make a packet. All else goes on to the kernel,
// and so to the sockets of user space.
//
// Unlike a socket it does not look at UDP's checksum, which sockets of the same machine leave to
// the device: it relies on the link's, and sends none.
// clang-format off: the others need its types
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_helpers.h>

#include "inline/slot.h"
#include "inline/xdp/aggregator_maps.h"

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

INLINED int counted(__u32 what) {
  __u64* const count = bpf_map_lookup_elem(&counts, &what);
  if (count) *count += 1;
  return XDP_DROP;
}

// A block is copied by 8 bytes. Loops are unrolled: the compiler makes no vectors for BPF.
INLINED void store(__u64* sums, const __u64* block) {
#pragma unroll
  for (int i = 0; i < INLINE_ELEMENTS / 2; ++i) sums[i] = block[i];
}

INLINED void add(__u32* sums, const __u32* block) {
#pragma unroll
  for (int i = 0; i < INLINE_ELEMENTS; ++i) sums[i] += block[i];
}

INLINED void add_and_copy(__u32* sums, __u32* block) {
#pragma unroll
  for (int i = 0; i < INLINE_ELEMENTS; ++i) {
    sums[i] += block[i];
    block[i] = sums[i];
  }
}

// The packet is the job's. Turns it into the result where there is one to send.
INLINED int take(struct xdp_md* context, struct inline_frame* packet, int full,
                 struct inline_xdp_job* job) {
  const struct inline_head head = packet->head;
  const __u32 index = (__u32)head.job * constants.slots_per_job + head.slot;
  struct inline_xdp_slot* const slot = bpf_map_lookup_elem(&slots, &index);
  if (!slot) return counted(INLINE_XDP_IMPOSSIBLE);
  struct slot_decision decision;
  struct inline_result result = {};
  bpf_spin_lock(&slot->lock);
  slot_take(&slot->state, job->workers, &head, &decision);
  const __u32 version = decision.version & (INLINE_VERSIONS - 1);
  __u32* const sums = slot->sums[version];
  if (full) {
    if (decision.verdict == SLOT_STORE)
      store((__u64*)sums, (const __u64*)packet->block);
    else if (decision.verdict == SLOT_ADD && decision.complete)
      add_and_copy(sums, packet->block);
    else if (decision.verdict == SLOT_ADD)
      add(sums, packet->block);
    else if (decision.verdict == SLOT_ANSWER && slot->state.results[version].has_block)
      store((__u64*)packet->block, (const __u64*)sums);
  }
  result = slot->state.results[version];
  bpf_spin_unlock(&slot->lock);

  if (decision.verdict >= SLOT_DUPLICATE)
    return counted(INLINE_XDP_DUPLICATE + (decision.verdict - SLOT_DUPLICATE));
  const int answer = decision.verdict == SLOT_ANSWER;
  if (!answer) counted(INLINE_XDP_TAKEN);
  if (!answer && !decision.complete) return XDP_DROP;
  counted(answer ? INLINE_XDP_ANSWERS : INLINE_XDP_RESULTS);
  packet->head.kind = INLINE_RESULT;
  packet->head.flags = result.has_block ? INLINE_BLOCK : 0;
  packet->head.round = decision.round;
  packet->head.block = result.block;
  packet->head.next = result.next;
  packet->head.exponent = result.exponent;
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
  const __u32 bytes = packet->head.flags ? FRAME_FULL_BYTES : FRAME_SHORT_BYTES;
  const __u32 said = sizeof(struct ethhdr) + sizeof(struct iphdr) + FRAME_BIG_ENDIAN(packet->udp.len);
  const __u32 size = (__u32)(end - (void*)packet);
  if (size < bytes || said < bytes) return counted(INLINE_XDP_SHORT);
  if (size > bytes || said > bytes) return counted(INLINE_XDP_LONG);
  const __u32 index = packet->head.job;
  struct inline_xdp_job* const job = bpf_map_lookup_elem(&jobs, &index);
  if (!job || !job->workers) return counted(INLINE_XDP_OTHER_JOB);
  if (packet->head.key != job->key) return counted(INLINE_XDP_FORGED);
  job->contributions += 1;
  if (packet->head.worker >= job->workers) return counted(INLINE_XDP_STRANGER);
  if (packet->head.slot >= constants.slots_per_job) return counted(INLINE_XDP_IMPOSSIBLE);
  if ((void*)packet + FRAME_FULL_BYTES > end) return take(context, packet, 0, job);
  return take(context, packet, 1, job);
}
