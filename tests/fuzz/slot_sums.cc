// Sums of 1 to 7 workers over an in-network aggregator's slots: right whatever the network loses,
// repeats and reorders, since the input says what it does (innetwork/slot_worker.h).
#include <memory>

#include "innetwork/slot_aggregator.h"
#include "innetwork/slot_worker.h"
#include "lossy.h"

using namespace omnihvd;
using fuzz::Bytes;

constexpr uint64_t kKey = 77;
constexpr fuzz::Times kTimes{200, 1'000, 50'000, 20'000};

struct Datagram {
  int to;  // a worker; -1: the aggregator
  Bytes bytes;
};

FUZZ(in) {
  const uint32_t workers = uint32_t(in.between(1, 7));
  const uint16_t slots = uint16_t(in.between(1, 3));
  const uint64_t count = in.between(0, 9 * INLINE_ELEMENTS);
  const InlineShape shape{count, DType::i32, workers, slots, in.flag()};
  std::vector<std::vector<int32_t>> tensors(workers, std::vector<int32_t>(count));
  std::vector<int32_t> expected(count);
  for (uint32_t w = 0; w < workers; ++w) {
    const uint16_t has = in.number<uint16_t>();  // blocks
    for (uint64_t i = 0; i < count; ++i) {
      if (has >> (i / INLINE_ELEMENTS) & 1) tensors[w][i] = fuzz::value(w, i);
      expected[i] = int32_t(uint32_t(expected[i]) + uint32_t(tensors[w][i]));
    }
  }
  SlotAggregator aggregator(1, slots);
  aggregator.set_job(0, kKey, workers, INLINE_INT32);
  std::vector<SlotWorker> ends;
  std::vector<std::unique_ptr<InlineTensor>> of;
  uint64_t now = 1;
  for (uint32_t w = 0; w < workers; ++w) {
    ends.emplace_back(SlotWorker::Place{kKey, 0, uint16_t(w), slots}, kTimes.wait, kTimes.longest);
    of.push_back(make_inline_tensor(tensors[w].data(), shape));
  }
  for (uint32_t w = 0; w < workers; ++w) ends[w].begin(now, *of[w]);
  fuzz::LossyNetwork<Datagram> network(kTimes);
  const auto is_open = [](const SlotWorker& end) { return !end.done(); };
  while (std::any_of(ends.begin(), ends.end(), is_open)) {
    uint8_t out[INLINE_FULL_BYTES];
    for (SlotWorker& end : ends)
      while (const size_t size = end.next(now, out)) network.send({-1, {out, out + size}});
    network.pass(&now);
    Datagram one;
    if (!network.deliver(in, &one)) continue;
    if (one.to >= 0) {
      ends[size_t(one.to)].take(now, one.bytes.data(), one.bytes.size());
      continue;
    }
    const auto answer = aggregator.take(one.bytes.data(), one.bytes.size());
    Bytes bytes(reinterpret_cast<const uint8_t*>(&answer.head),
                reinterpret_cast<const uint8_t*>(&answer.head + 1));
    const auto* const block = static_cast<const uint8_t*>(answer.block.data);
    bytes.insert(bytes.end(), block, block + answer.block.size);
    inline_head head;
    std::memcpy(&head, one.bytes.data(), sizeof head);
    for (uint32_t w = 0; w < workers; ++w)
      if (answer.to == SlotAggregator::To::all ||
          (answer.to == SlotAggregator::To::sender && w == head.worker))
        network.send({int(w), bytes});
  }
  for (const auto& tensor : tensors) MUST(tensor == expected);
}
