// Lets all packets pass. The other end of a veth pair needs an XDP program of its own to receive
// what an XDP program sends; network cards do not:
//
//   ip link set dev INTERFACE xdp obj pass.bpf.o sec xdp
// clang-format off: the others need its types
#include <linux/bpf.h>
// clang-format on

#include <bpf/bpf_helpers.h>

SEC("xdp")
int pass(struct xdp_md* context) {
  (void)context;
  return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
