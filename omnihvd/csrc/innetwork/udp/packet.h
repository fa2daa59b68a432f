// The format of packets between two UDP transports. docs/in-network.md describes the transport.
//
//   u8 x 3   flow: of the receiver for what goes there, of the sender for what comes back
//   u8       kind
//   u32 ...  fields, as many as the kind has
//   u64      tag: a code over all before it, by the flow's key
//   bytes    the rest: of a message, or bits of an acknowledgement
//
// Little endian. The tag also covers the rest, but for data only if the job has a secret. Pure;
// trusts nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "innetwork/siphash.h"

namespace omnihvd {

enum class PacketKind : uint8_t {
  open = 1,         // first, payload, window, sender; nonce (4)
  accept,           // flow of the receiver, bytes that it buffers
  data,             // sequence, stamp, size, offset
  acknowledgement,  // floor, stamp
  probe,            // stamp
  alive,            // that stamp
};

constexpr uint32_t kFlows = 1u << 24;
constexpr size_t kPacketFields = 8;                        // at most
constexpr size_t kPacketHead = 4 + 4 * kPacketFields + 8;  // at most
constexpr size_t kDataHead = 4 + 4 * 4 + 8;

struct Packet {
  PacketKind kind;
  uint32_t flow;
  uint32_t fields[kPacketFields];
  const uint8_t* head;
  const uint8_t* rest;
  size_t rest_bytes;
};

// The key by which packets prove that they belong to a flow.
class PacketKey {
 public:
  PacketKey() = default;
  explicit PacketKey(const std::string& digest);  // 32 bytes
  uint64_t tag(const uint8_t* head, size_t head_bytes, const uint8_t* rest,
               size_t rest_bytes) const;

 private:
  SipKey head_{}, rest_{};
};

// Writes the head to out[kPacketHead] and returns its size. rest_bytes: how many bytes of the rest
// the tag covers.
size_t write_packet(PacketKind kind, uint32_t flow, const uint32_t* fields, const PacketKey& key,
                    const uint8_t* rest, size_t rest_bytes, uint8_t* out);
// Returns false if this is no packet.
bool read_packet(const uint8_t* data, size_t size, Packet* packet);
bool is_authentic(const Packet& packet, const PacketKey& key, bool covers_rest);

}  // namespace omnihvd
