// Datagrams to an in-network aggregator (innetwork/slot_aggregator.h). Its place may have had
// another job before: it still answers as a fresh one does. Datagrams of other jobs change nothing.
#include "innetwork/slot_aggregator.h"
#include "input.h"

using namespace omnihvd;
using fuzz::Bytes;

constexpr uint64_t kKey = 77;
constexpr uint16_t kSlots = 2;

// A datagram that is often possible.
static Bytes drawn_datagram(fuzz::Input& in, uint64_t key) {
  if (in.between(0, 15) == 0) return in.bytes(in.between(0, INLINE_FULL_BYTES));
  inline_head head{};
  head.key = key;
  head.kind = INLINE_CONTRIBUTION;
  const uint8_t flags = in.number<uint8_t>();
  head.flags = flags & (INLINE_BLOCK | INLINE_REPEAT | INLINE_CODES);
  head.job = flags >> 4 & 1;
  head.worker = uint16_t(in.between(0, 3));
  head.slot = uint16_t(in.between(0, kSlots));
  head.round = uint32_t(int32_t(in.number<int8_t>()));
  head.block = in.number<uint8_t>();
  if (head.block == 255) head.block = INLINE_NONE;
  head.next = in.number<uint8_t>();
  if (head.next == 255) head.next = INLINE_NONE;
  head.exponent = in.number<uint8_t>();
  const size_t full = head.flags & INLINE_CODES ? INLINE_CODED_BYTES : INLINE_FULL_BYTES;
  Bytes datagram(head.flags ? full : INLINE_HEAD_BYTES);
  std::memcpy(datagram.data(), &head, sizeof head);
  for (size_t i = sizeof head; i < datagram.size(); i += 64) datagram[i] = uint8_t(i ^ head.next);
  return datagram;
}

static Bytes answer_of(SlotAggregator& aggregator, const Bytes& datagram) {
  const auto answer = aggregator.take(datagram.data(), datagram.size());
  Bytes all(1, uint8_t(answer.to));
  if (answer.to == SlotAggregator::To::nobody) return all;
  const auto add = [&](const void* data, size_t size) {
    const auto* const bytes = static_cast<const uint8_t*>(data);
    all.insert(all.end(), bytes, bytes + size);
  };
  add(&answer.head, sizeof answer.head);
  add(answer.block.data, answer.block.size);
  return all;
}

FUZZ(in) {
  SlotAggregator used(2, kSlots), fresh(2, kSlots);
  const uint8_t numbers = uint8_t(in.between(0, INLINE_NUMBERS - 1));
  for (size_t job = 0; job < 2; ++job) used.set_job(job, kKey - 1, 1, numbers);
  for (uint64_t sent = in.between(0, 20); sent > 0; --sent)
    answer_of(used, drawn_datagram(in, kKey - 1));
  const uint32_t workers = uint32_t(in.between(1, 3));
  for (SlotAggregator* const aggregator : {&used, &fresh})
    for (size_t job = 0; job < 2; ++job) aggregator->set_job(job, kKey, workers, numbers);
  while (!in.empty()) {
    const Bytes datagram = drawn_datagram(in, kKey);
    Bytes strange = datagram;
    if (strange.size() >= sizeof(uint64_t)) strange[0] ^= 1;  // of another key
    answer_of(used, strange);
    MUST(answer_of(used, datagram) == answer_of(fresh, datagram));
  }
}
