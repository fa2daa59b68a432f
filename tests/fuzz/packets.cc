// Packets of the UDP transport (innetwork/udp/packet.h): what is written is read, and is authentic
// under its key alone; any bytes that are read are written again as they were.
#include "innetwork/udp/packet.h"
#include "input.h"

using namespace omnihvd;
using fuzz::Bytes;

FUZZ(in) {
  const uint8_t seed = in.number<uint8_t>();
  const PacketKey key(std::string(32, char(seed))), other(std::string(32, char(~seed)));
  const bool covers = in.flag(), writes = in.flag();
  const uint16_t flipped = in.number<uint16_t>();
  Bytes whole;
  if (writes) {
    const auto kind = PacketKind(in.between(1, 6));
    uint32_t fields[kPacketFields];
    const uint32_t flow = in.number<uint32_t>();
    for (uint32_t& field : fields) field = in.number<uint32_t>();
    const Bytes rest =
        kind == PacketKind::data || kind == PacketKind::acknowledgement ? in.rest() : Bytes();
    uint8_t head[kPacketHead];
    const size_t size =
        write_packet(kind, flow, fields, key, rest.data(), covers ? rest.size() : 0, head);
    whole.assign(head, head + size);
    whole.insert(whole.end(), rest.begin(), rest.end());
    Packet packet;
    MUST(read_packet(whole.data(), whole.size(), &packet));
    MUST(packet.kind == kind && packet.flow == flow % kFlows && packet.rest_bytes == rest.size());
    MUST(std::equal(rest.begin(), rest.end(), packet.rest));
    MUST(std::memcmp(packet.fields, fields, size_t(packet.rest - packet.head) - 12) == 0);
    MUST(is_authentic(packet, key, covers));
    MUST(!is_authentic(packet, other, covers));
    const size_t tagged = covers ? whole.size() : size;
    whole[flipped % tagged] ^= uint8_t(1 << flipped / 4096 % 8);
    MUST(!read_packet(whole.data(), whole.size(), &packet) || !is_authentic(packet, key, covers));
    return;
  }
  whole = in.rest();
  Packet packet;
  if (!read_packet(whole.data(), whole.size(), &packet)) return;
  uint8_t head[kPacketHead];
  const size_t size = write_packet(packet.kind, packet.flow, packet.fields, key, packet.rest,
                                   covers ? packet.rest_bytes : 0, head);
  MUST(packet.rest == whole.data() + size && packet.rest_bytes == whole.size() - size);
  MUST(std::equal(head, head + size - 8, whole.begin()));
  const bool same = std::equal(head, head + size, whole.begin());
  MUST(is_authentic(packet, key, covers) == same);
}
