#include "innetwork/af_xdp/interface.h"

#include <bpf/bpf.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "innetwork/xdp/device.h"

namespace omnihvd {

AfXdpInterface::AfXdpInterface(const Options& options)
    : own_(place_of(options.host, options.port)),
      group_(group_place(options.group, options.port)),
      program_(options.object, "redirect") {
  const uint32_t queues = receive_queues(options.interface);
  program_.set_constants(&own_, sizeof own_);
  program_.set_entries("sockets", queues);
  program_.load();
  program_.attach(options.interface);
  for (uint32_t queue = 0; queue < queues; ++queue) {
    const int fd = sockets_.emplace_back(options.interface, queue).fd();
    if (bpf_map_update_elem(program_.map("sockets"), &queue, &fd, BPF_ANY) != 0)
      throw Error("cannot give the XDP program a socket of AF_XDP: " + why(errno));
  }
  log(LogLevel::info, "AF_XDP on ", queues, " queues of ", options.interface,
      is_zero_copy() ? ", without copies" : ", with copies");
}

std::vector<int> AfXdpInterface::descriptors() const {
  std::vector<int> descriptors;
  for (const XskSocket& socket : sockets_) descriptors.push_back(socket.fd());
  return descriptors;
}

bool AfXdpInterface::is_zero_copy() const {
  return std::all_of(sockets_.begin(), sockets_.end(),
                     [](const XskSocket& socket) { return socket.is_zero_copy(); });
}

bool AfXdpInterface::exchange(SlotAggregator& sums) {
  bool any = false;
  for (XskSocket& socket : sockets_) {
    any |=
        socket.receive([&](const uint8_t* data, size_t size) { take(socket, sums, data, size); });
    socket.flush();
  }
  return any;
}

// The XDP program has checked the whole frame except its lengths.
void AfXdpInterface::take(XskSocket& from, SlotAggregator& sums, const uint8_t* data, size_t size) {
  inline_frame frame;
  if (size < FRAME_BYTES) return;
  std::memcpy(&frame, data, FRAME_BYTES);
  const size_t said = FRAME_BIG_ENDIAN(frame.udp.len);
  const size_t there = size - FRAME_BYTES + sizeof frame.udp;
  // Ethernet may have padded the frame. A truncated one counts as empty.
  const size_t datagram = said < sizeof frame.udp || said > there ? 0 : said - sizeof frame.udp;
  const auto answer = sums.take(data + FRAME_BYTES, datagram);
  if (answer.to == SlotAggregator::To::nobody) return;
  uint8_t* const out = from.frame();
  if (!out) {
    ++unsent_;
    return;
  }
  const bool to_all = answer.to == SlotAggregator::To::all;
  const size_t bytes = sizeof answer.head + answer.block.size;
  frame_turn(&frame, &own_, to_all ? &group_ : nullptr, uint32_t(bytes));
  std::memcpy(out, &frame, FRAME_BYTES);
  std::memcpy(out + FRAME_BYTES, &answer.head, sizeof answer.head);
  if (answer.block.size) std::memcpy(out + FRAME_SHORT_BYTES, answer.block.data, answer.block.size);
  from.send(FRAME_BYTES + bytes);
}

uint64_t AfXdpInterface::dropped() const {
  uint64_t dropped = unsent_;
  for (const XskSocket& socket : sockets_) dropped += socket.dropped();
  return dropped;
}

}  // namespace omnihvd
