#include "innetwork/udp/packet.h"

#include <cstring>

#include "base/sha256.h"

namespace omnihvd {
namespace {

// The number of fields of each kind; -1: no such kind.
constexpr int kFields[] = {-1, 8, 2, 4, 2, 1, 1};

bool has_rest(PacketKind kind) {
  return kind == PacketKind::data || kind == PacketKind::acknowledgement;
}

}  // namespace

PacketKey::PacketKey(const std::string& digest) {
  std::memcpy(head_.data(), digest.data(), sizeof head_);
  std::memcpy(rest_.data(), digest.data() + sizeof head_, sizeof rest_);
}

uint64_t PacketKey::tag(const uint8_t* head, size_t head_bytes, const uint8_t* rest,
                        size_t rest_bytes) const {
  uint8_t all[kPacketHead];
  std::memcpy(all, head, head_bytes);
  if (rest_bytes > 0) {
    const uint64_t code = siphash(rest_, rest, rest_bytes);
    std::memcpy(all + head_bytes, &code, sizeof code);
    head_bytes += sizeof code;
  }
  return siphash(head_, all, head_bytes);
}

size_t write_packet(PacketKind kind, uint32_t flow, const uint32_t* fields, const PacketKey& key,
                    const uint8_t* rest, size_t rest_bytes, uint8_t* out) {
  const uint32_t word = flow % kFlows | uint32_t(kind) << 24;
  const size_t fields_bytes = size_t(kFields[size_t(kind)]) * 4;
  std::memcpy(out, &word, 4);
  std::memcpy(out + 4, fields, fields_bytes);
  const uint64_t tag = key.tag(out, 4 + fields_bytes, rest, rest_bytes);
  std::memcpy(out + 4 + fields_bytes, &tag, sizeof tag);
  return 4 + fields_bytes + sizeof tag;
}

bool read_packet(const uint8_t* data, size_t size, Packet* packet) {
  if (size < 4) return false;
  uint32_t word;
  std::memcpy(&word, data, 4);
  const uint32_t kind = word >> 24;
  if (kind >= sizeof kFields / sizeof kFields[0] || kFields[kind] < 0) return false;
  const size_t fields_bytes = size_t(kFields[kind]) * 4, head_bytes = 4 + fields_bytes + 8;
  packet->kind = PacketKind(kind);
  if (size < head_bytes || (size > head_bytes && !has_rest(packet->kind))) return false;
  packet->flow = word % kFlows;
  std::memcpy(packet->fields, data + 4, fields_bytes);
  packet->head = data;
  packet->rest = data + head_bytes;
  packet->rest_bytes = size - head_bytes;
  return true;
}

bool is_authentic(const Packet& packet, const PacketKey& key, bool covers_rest) {
  const size_t tagged = 4 + size_t(kFields[size_t(packet.kind)]) * 4;
  const uint64_t tag =
      key.tag(packet.head, tagged, packet.rest, covers_rest ? packet.rest_bytes : 0);
  return equal_in_constant_time(&tag, packet.head + tagged, sizeof tag);
}

}  // namespace omnihvd
