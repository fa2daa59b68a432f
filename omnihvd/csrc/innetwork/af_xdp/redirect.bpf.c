// Hands contributions to AF_XDP, through one socket per receive queue. All other packets go on to
// the kernel. So do contributions on a queue without a socket: user space receives them there.
// clang-format off: the others need its types
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_helpers.h>

#include "innetwork/xdp/frame.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct inline_place own = {};

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int redirect(struct xdp_md* context) {
  void* const end = (void*)(long)context->data_end;
  const struct inline_frame* const frame = (void*)(long)context->data;
  if ((const void*)frame + FRAME_BYTES + sizeof(__u64) + 1 > end) return XDP_PASS;
  if (!frame_is_contribution(frame, &own)) return XDP_PASS;
  return (int)bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}
