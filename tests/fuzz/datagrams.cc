// Messages over datagrams that the input loses, repeats and reorders: each comes once, whole, in
// order, and the sender learns of it (innetwork/udp/datagram_*.h).
#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/datagram_sender.h"
#include "lossy.h"

using namespace omnihvd;
using fuzz::Bytes;

constexpr uint32_t kLargest = 4000;
constexpr fuzz::Times kTimes{100, 1'000, 1'000'000, 200'000};

struct UnderWay {
  bool back;  // an acknowledgement
  Datagram header;
  Bytes bytes;
  Acknowledgement made;
};

FUZZ(in) {
  const uint32_t payload = uint32_t(in.between(1, 400)), window = uint32_t(in.between(1, 40));
  const uint32_t first = in.number<uint32_t>();
  const bool ordered = in.flag();
  DatagramSender sender(first, payload, window);
  DatagramReceiver receiver(first, payload, window, kLargest, ordered);
  if (in.flag()) sender.pace(28);
  std::vector<Bytes> messages(in.between(1, 8));
  for (size_t m = 0; m < messages.size(); ++m) {
    messages[m].resize(std::min<uint64_t>(in.between(0, kLargest), uint64_t{payload} * window));
    for (size_t i = 0; i < messages[m].size(); ++i) messages[m][i] = uint8_t(i * 7 + m * 31 + 1);
    sender.send(m, uint32_t(messages[m].size()));
  }
  fuzz::LossyNetwork<UnderWay> network(kTimes);
  std::vector<uint64_t> done;
  std::vector<bool> has_come(messages.size());
  size_t came = 0;
  uint64_t now = 1'000'000;
  while (!sender.idle() || came < messages.size()) {
    network.pass(&now);
    DatagramSender::Piece piece;
    while (sender.next(now, &piece)) {
      const auto begin = messages[piece.message].begin() + piece.header.offset;
      network.send({false, piece.header, {begin, begin + piece.bytes}, {}});
    }
    UnderWay one;
    if (!network.deliver(in, &one)) continue;
    if (one.back) {
      MUST(sender.on_acknowledgement(now, one.made, &done));
      continue;
    }
    MUST(receiver.on_datagram(one.header, one.bytes.data(), one.bytes.size()) !=
         DatagramReceiver::Taken::refused);
    if (receiver.owes()) network.send({true, {}, {}, receiver.acknowledgement()});
    for (Bytes message; receiver.next_message(&message); ++came) {
      MUST(came < messages.size());
      size_t is = came;
      if (!ordered)
        for (is = 0; is < messages.size() && (has_come[is] || messages[is] != message);) ++is;
      MUST(is < messages.size() && message == messages[is]);
      has_come[is] = true;
    }
  }
  MUST(done.size() == messages.size() && receiver.held_bytes() == 0);
}
