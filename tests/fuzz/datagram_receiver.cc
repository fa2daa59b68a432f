// Datagrams that no sender makes (innetwork/udp/datagram_receiver.h): a refused one changes
// nothing, no byte comes that was not sent, and memory stays within its bound.
#include "innetwork/udp/datagram_receiver.h"

#include "input.h"

using namespace omnihvd;
using fuzz::Bytes;

FUZZ(in) {
  const uint32_t payload = uint32_t(in.between(1, 40)), window = uint32_t(in.between(1, 40));
  const uint32_t largest = uint32_t(in.between(0, 2000)), first = in.number<uint32_t>();
  DatagramReceiver receiver(first, payload, window, largest, in.flag());
  uint64_t fresh = 0, given = 0;
  while (!in.empty()) {
    const uint32_t size = uint32_t(in.between(0, in.flag() ? 60 : 3000));
    const uint32_t sequence = first + uint32_t(int32_t(in.number<int8_t>()));
    uint32_t offset = uint32_t(in.between(0, 60)) * payload + (in.between(0, 15) == 0);
    if (in.flag() && size > 0) offset = offset % size / payload * payload;
    const Datagram header{sequence, in.number<uint32_t>(), size, offset};
    uint32_t bytes = offset < size ? std::min(payload, size - offset) : 0;
    if (in.between(0, 15) == 0) bytes = uint32_t(in.between(0, 60));
    const Bytes data(bytes, uint8_t(1 + offset % 255));
    const size_t held = receiver.held_bytes();
    const bool owes = receiver.owes();
    switch (receiver.on_datagram(header, data.data(), data.size())) {
      case DatagramReceiver::Taken::refused:
        MUST(receiver.held_bytes() == held && receiver.owes() == owes);
        break;
      case DatagramReceiver::Taken::duplicate: MUST(receiver.held_bytes() == held); break;
      case DatagramReceiver::Taken::fresh: fresh += bytes;
    }
    MUST(receiver.held_bytes() <= size_t(window) * payload + 2 * size_t(largest));
    if (in.flag()) {
      const Acknowledgement made = receiver.acknowledgement();
      MUST(made.bits.size() <= (window + 7) / 8 && !receiver.owes());
    }
    Bytes message;
    while (receiver.next_message(&message)) {
      given += message.size();
      for (size_t i = 0; i < message.size(); ++i)
        MUST(message[i] == uint8_t(1 + i / payload * payload % 255));
    }
  }
  MUST(given <= fresh);
}
