// An Ethernet frame with an in-network aggregation datagram. C, shared by the XDP programs and user
// space. Addresses are as in packets, which are big endian.
#ifndef OMNIHVD_INLINE_XDP_FRAME_H
#define OMNIHVD_INLINE_XDP_FRAME_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/types.h>
#include <linux/udp.h>

#include "innetwork/packet.h"

struct inline_frame {
  struct ethhdr ethernet;
  struct iphdr ip;
  struct udphdr udp;
  struct inline_head head;
  __u32 block[INLINE_ELEMENTS];
} __attribute__((packed, aligned(2)));

#define FRAME_BYTES (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define FRAME_SHORT_BYTES (FRAME_BYTES + INLINE_HEAD_BYTES)
#define FRAME_FULL_BYTES (FRAME_BYTES + INLINE_FULL_BYTES)
#define FRAME_BIG_ENDIAN(x) __builtin_bswap16((__u16)(x))
#define FRAME_UDP 17
#define FRAME_FUNCTION static inline __attribute__((always_inline))

struct inline_place {
  __u32 address;
  __u16 port;
  __u8 mac[ETH_ALEN];  // for a group
};

// Is the frame a contribution to this place, whatever its length? The frame must hold FRAME_BYTES
// and the datagram's bytes up to its kind.
FRAME_FUNCTION int frame_is_contribution(const struct inline_frame* frame,
                                         const volatile struct inline_place* own) {
  return frame->ethernet.h_proto == FRAME_BIG_ENDIAN(ETH_P_IP) && frame->ip.ihl == 5 &&
         frame->ip.version == 4 && frame->ip.protocol == FRAME_UDP &&
         !(frame->ip.frag_off & FRAME_BIG_ENDIAN(0x3FFF)) && frame->ip.daddr == own->address &&
         frame->udp.dest == own->port && frame->head.kind == INLINE_CONTRIBUTION;
}

FRAME_FUNCTION void frame_set_checksum(struct inline_frame* frame) {
  __u32 sum = 0;
  frame->ip.check = 0;
  for (unsigned i = 0; i < sizeof(struct iphdr); i += 2) {
    __u16 word;
    __builtin_memcpy(&word, __builtin_assume_aligned((const char*)&frame->ip + i, 2), 2);
    sum += word;
  }
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  frame->ip.check = (__u16)~sum;
}

// Turns the frame of a contribution into one with a datagram of so many bytes, to the group or
// (none) to its sender. Leaves out the UDP checksum.
FRAME_FUNCTION void frame_turn(struct inline_frame* frame, const volatile struct inline_place* own,
                               const struct inline_place* group, __u32 bytes) {
  __u8 mac[ETH_ALEN];
  __builtin_memcpy(mac, frame->ethernet.h_source, ETH_ALEN);
  __builtin_memcpy(frame->ethernet.h_source, frame->ethernet.h_dest, ETH_ALEN);
  const __u32 from = frame->ip.saddr;
  const __u16 from_port = frame->udp.source;
  frame->ip.saddr = own->address;
  frame->udp.source = own->port;
  if (group) {
    __builtin_memcpy(frame->ethernet.h_dest, group->mac, ETH_ALEN);
    frame->ip.daddr = group->address;
    frame->udp.dest = group->port;
  } else {
    __builtin_memcpy(frame->ethernet.h_dest, mac, ETH_ALEN);
    frame->ip.daddr = from;
    frame->udp.dest = from_port;
  }
  const __u32 length = sizeof(struct udphdr) + bytes;
  frame->udp.len = FRAME_BIG_ENDIAN(length);
  frame->udp.check = 0;
  frame->ip.tot_len = FRAME_BIG_ENDIAN(sizeof(struct iphdr) + length);
  frame->ip.ttl = group ? 1 : 64;
  frame_set_checksum(frame);
}

#endif
