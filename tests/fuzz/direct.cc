// Direct sums (algorithms/direct/direct_rounds.h) of 2 to 5 ranks. The input chooses which rank
// hears its next message.
//
// Each sum is right on all ranks. If a message is changed on its way, a rank refuses it, or writes
// nothing outside of its tensor.
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "algorithms/direct/direct_rounds.h"
#include "input.h"

using namespace omnihvd;
using namespace omnihvd::fuzz;

using Network = std::map<std::pair<int, int>, std::deque<Bytes>>;  // by from and to; none is empty

class Outbox : public DirectRounds::Outbox {
 public:
  Outbox(Network& network, int from) : network_(network), from_(from) {}
  uint8_t* room() override { return room_.data(); }
  void send(int rank, size_t bytes) override {
    MUST(rank != from_ && bytes <= room_.size());
    network_[{from_, rank}].emplace_back(room_.begin(), room_.begin() + long(bytes));
  }

 private:
  Network& network_;
  const int from_;
  Bytes room_ = Bytes(DirectRounds::kMessage, 0xA5);
};

struct Rank {
  std::unique_ptr<Outbox> outbox;
  std::unique_ptr<DirectRounds> rounds;
  std::vector<int32_t> given, in, out;
  bool refused = false;
};

static void begin(Input& in, std::vector<Rank>& ranks, uint32_t block, uint64_t count,
                  uint64_t sum) {
  const bool in_place = in.flag();
  for (int rank = 0; rank < int(ranks.size()); ++rank) {
    Rank& own = ranks[size_t(rank)];
    own.given.assign(count, 0);
    const auto has = in.number<uint64_t>();  // blocks, in turn
    for (uint64_t i = 0; i < count; ++i)
      if (has >> (i / block % 64) & 1) own.given[i] = value(uint32_t(rank), i, sum);
    own.in = own.given;
    own.out.assign(in_place ? 0 : count, -1);
    own.rounds->begin(own.in.data(), in_place ? own.in.data() : own.out.data(),
                      SmallCall(count, DType::i32), sum);
  }
}

static void change(Input& in, Bytes* message) {
  constexpr size_t kFixed = offsetof(DirectHeader, first);  // DirectSum has looked at the rest
  const size_t last = in.flag() ? sizeof(DirectHeader) : message->size() - 1;
  if (in.flag())
    message->resize(in.between(sizeof(DirectHeader), message->size()));
  else
    (*message)[in.between(kFixed, last)] ^= in.number<uint8_t>();
  auto& header = *reinterpret_cast<DirectHeader*>(message->data());
  if (in.number<uint8_t>() % 8 == 1) header.kind ^= DirectHeader::give ^ DirectHeader::result;
  message->shrink_to_fit();
}

static void deliver_all(Input& in, Network& network, std::vector<Rank>& ranks, uint64_t number,
                        bool hostile) {
  while (!network.empty()) {
    auto [ends, message] = take_next(in, &network);
    const auto [from, to] = ends;
    Rank& rank = ranks[size_t(to)];
    const auto& header = *reinterpret_cast<const DirectHeader*>(message.data());
    MUST(header.from == uint32_t(from) && header.number == number);
    MUST(header.call == rank.rounds->call().word);
    MUST(header.kind == DirectHeader::give || header.kind == DirectHeader::result);
    MUST(rank.refused || rank.rounds->lacks(from) || header.kind == DirectHeader::result);
    if (hostile && in.number<uint8_t>() % 8 == 1) change(in, &message);
    if (rank.refused) continue;
    const auto& heard = *reinterpret_cast<const DirectHeader*>(message.data());
    rank.refused = !rank.rounds->take(heard, message.size());
    MUST(hostile || !rank.refused);
  }
}

static void check(const std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) {
    MUST(rank.rounds->complete());
    const std::vector<int32_t>& out = rank.out.empty() ? rank.in : rank.out;
    for (size_t i = 0; i < out.size(); ++i) {
      uint32_t expected = 0;
      for (const Rank& other : ranks) expected += uint32_t(other.given[i]);
      MUST(out[i] == int32_t(expected));
    }
  }
}

FUZZ(in) {
  const bool hostile = in.flag();
  const auto block = uint32_t(in.between(8, 200));
  const uint64_t sums = in.between(1, 3);
  std::vector<Rank> ranks(in.between(2, 5));
  Network network;
  for (int rank = 0; rank < int(ranks.size()); ++rank) {
    Rank& own = ranks[size_t(rank)];
    own.outbox = std::make_unique<Outbox>(network, rank);
    own.rounds = std::make_unique<DirectRounds>(rank, int(ranks.size()), block, *own.outbox);
  }
  for (uint64_t sum = 1; sum <= sums; ++sum) {
    begin(in, ranks, block, in.between(1, in.number<uint8_t>() % 16 == 1 ? 40'000 : 600), sum);
    deliver_all(in, network, ranks, sum, hostile);
    if (!hostile) check(ranks);
  }
}
