// Messages over datagrams that the input loses, repeats and reorders: each comes once, whole, in
// order, and the sender learns of it (innetwork/udp/datagram_*.h).
#include <deque>

#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/datagram_sender.h"
#include "input.h"

using namespace omnihvd;
using fuzz::Bytes;

constexpr uint32_t kLargest = 4000;
constexpr uint64_t kStep = 100, kWait = 1'000;          // us; the least time-out
constexpr uint64_t kMostSteps = 200'000;                // in which a datagram arrives or is lost
constexpr uint64_t kMostWaits = 1'000'000 / kWait + 1;  // one after another: the longest time-out

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
  std::deque<UnderWay> under_way;
  std::vector<uint64_t> done;
  std::vector<bool> has_come(messages.size());
  size_t came = 0;
  uint64_t now = 1'000'000;
  for (uint64_t steps = 0, waits = 0; !sender.idle() || came < messages.size();) {
    now += under_way.empty() ? kWait : kStep;
    DatagramSender::Piece piece;
    while (sender.next(now, &piece)) {
      const auto begin = messages[piece.message].begin() + piece.header.offset;
      under_way.push_back({false, piece.header, {begin, begin + piece.bytes}, {}});
    }
    if (under_way.empty()) {
      MUST(++waits <= kMostWaits);
      continue;
    }
    MUST(++steps < kMostSteps);
    waits = 0;
    const uint8_t fate = in.number<uint8_t>();  // 0 without input: the next arrives
    const size_t which = (fate >> 2) % under_way.size();
    const UnderWay one = under_way[which];
    if (fate % 4 != 1) under_way.erase(under_way.begin() + long(which));  // 1: it comes twice
    if (fate % 4 == 2) continue;                                          // lost
    if (one.back) {
      MUST(sender.on_acknowledgement(now, one.made, &done));
      continue;
    }
    MUST(receiver.on_datagram(one.header, one.bytes.data(), one.bytes.size()) !=
         DatagramReceiver::Taken::refused);
    if (receiver.owes()) under_way.push_back({true, {}, {}, receiver.acknowledgement()});
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
