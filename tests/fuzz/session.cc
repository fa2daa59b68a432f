// Messages into a session of 1 to 7 processes: the engine's Dispatch and GroupStream of each, over
// a network in which the input chooses which message comes next.
//
// Strangers' messages change nothing: each sum is right on all ranks. If a member itself sends what
// it should not (its messages are changed on their way), each sum ends, right or failed.
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "engine/collective.h"
#include "engine/dispatch.h"
#include "frames.h"
#include "protocol/tensor.h"

using namespace omnihvd;
using namespace omnihvd::fuzz;

constexpr uint64_t kSecond = 1'000'000;
constexpr double kTimeoutS = 5;

class Network;

// Reads a message's memory when it arrives: until then nobody may change it.
class Port : public Transport {
 public:
  Port(Network& network, uint32_t self) : network_(network), self_(self) {}
  void set_handler(Handler*) override {}
  std::string address() const override { return std::to_string(self_); }
  PeerId connect(const std::string& address) override { return PeerId(std::stoul(address)); }
  void disconnect(PeerId) override {}
  void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) override;
  void detach(uint64_t cookie) override;
  bool progress() override { return false; }
  void wait(int) override {}
  void wake() override {}
  bool is_local(const std::string&) const override { return false; }
  std::string describe() const override { return "fuzz"; }

 private:
  Network& network_;
  const uint32_t self_;
};

class Network {
 public:
  struct UnderWay {
    std::vector<Slice> slices;
    Bytes copy;  // once detached
    uint64_t cookie;
    bool detached;
    Bytes bytes() const {
      if (detached) return copy;
      Bytes all;
      for (const Slice& slice : slices) {
        const auto* const data = static_cast<const uint8_t*>(slice.data);
        all.insert(all.end(), data, data + slice.size);
      }
      return all;
    }
  };
  using Ends = std::pair<uint32_t, uint32_t>;  // from, to
  std::map<Ends, std::deque<UnderWay>> ways;   // none is empty
};

void Port::send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) {
  network_.ways[{self_, peer}].push_back({{slices, slices + count}, {}, cookie, false});
}

void Port::detach(uint64_t cookie) {
  for (auto& [ends, way] : network_.ways)
    for (Network::UnderWay& one : way)
      if (ends.first == self_ && one.cookie == cookie && !one.detached) {
        one.copy = one.bytes();
        one.detached = true;
      }
}

struct Sum {
  std::vector<int32_t> in, out;
  bool ended = false, failed = false;
};

struct Process {
  std::unique_ptr<Port> port;
  std::unique_ptr<Dispatch> groups;
  std::shared_ptr<GroupStream> part;
  std::deque<Sum> sums;
};

class Session {
 public:
  explicit Session(Input& in) : in_(in), processes_(in.between(1, 7)) {
    static const bool quiet = (set_log_level(LogLevel::off), true);
    static_cast<void>(quiet);
    auto info = std::make_shared<GroupInfo>();
    info->id = 11;
    info->key = std::string(32, 'k');
    info->workers = uint32_t(processes_.size());
    info->settings.block_size = uint32_t(in.between(8, 40));
    info->settings.message_bytes = uint32_t(in.between(64, 2000));
    info->settings.slots = uint32_t(in.between(1, 3));
    info->settings.scan_ahead = uint32_t(in.between(1, 50));
    info->settings.timeout_s = kTimeoutS;
    info->settings.deterministic = in.flag();
    if (processes_.size() == 4 && in.flag()) info->settings.levels = "2x2";
    for (uint32_t node = 0; node < info->workers; ++node)
      info->nodes.push_back({std::to_string(node), {std::to_string(node)}});
    info->take_seats();
    info_ = info;
    for (uint32_t rank = 0; rank < processes_.size(); ++rank) {
      Process& process = processes_[rank];
      process.port = std::make_unique<Port>(network_, rank);
      process.groups = std::make_unique<Dispatch>();
      process.part = process.groups->join(info_, rank, 0, *process.port, [](const std::string&) {});
    }
    for (Process& process : processes_) process.part->all_listen();
  }

  void begin(uint64_t count, size_t sum) {
    Shape shape = info_->shape_of(count, DType::i32, {});
    for (uint32_t rank = 0; rank < processes_.size(); ++rank) {
      Process& process = processes_[rank];
      Sum& own = process.sums.emplace_back();
      own.in.resize(count);
      own.out.assign(count, -1);
      const uint64_t has = in_.number<uint64_t>();  // blocks, in turn
      for (uint64_t i = 0; i < count; ++i)
        if (has >> (i / shape.block_size % 64) & 1) own.in[i] = value(rank, i, sum);
      const auto make = [&own, rank](const Layout& layout) {
        return std::make_unique<HostTensor>(layout, own.in.data(), own.out.data(), rank);
      };
      process.part->start(std::make_shared<Collective>(
          sum + 1, shape, info_->workers, 1, make,
          [&own](const std::string* failure, uint64_t) {
            MUST(!own.ended);
            own.ended = true;
            own.failed = failure != nullptr;
            MUST(!failure || !failure->empty());
          },
          false));
    }
  }

  bool step(bool hostile) {
    bool moved = false;
    for (Process& process : processes_) moved |= process.groups->work();
    if (network_.ways.empty()) return moved;
    const auto [ends, one] = take_next(in_, &network_.ways);
    const auto [from, to] = ends;
    Bytes message = one.bytes();
    Dispatch& groups = *processes_[to].groups;
    const uint8_t fate = in_.number<uint8_t>();  // 0 without input
    if (fate % 8 == 1) strange(groups, message);
    if (hostile && fate % 8 == 2 && message.size() > kHeaderBytes)
      message[in_.between(kHeaderBytes, message.size() - 1)] ^= in_.number<uint8_t>();
    groups.on_message(message.data(), message.size());
    if (!one.detached) groups_of(from).on_sent(one.cookie);
    if (fate % 8 == 3) groups.on_message(message.data(), message.size());  // a repeat
    return true;
  }

  // Neither random bytes nor a member's message with another tag, number or length is taken.
  void strange(Dispatch& groups, Bytes message) {
    if (in_.flag()) {
      message = in_.bytes(in_.between(0, 200));
    } else if (in_.flag()) {
      message[kTagAt + in_.between(0, kTagBytes - 1)] ^= uint8_t(in_.between(1, 255));
    } else {
      message.resize(in_.between(0, message.size() - 1));
    }
    message.shrink_to_fit();
    groups.on_message(message.data(), message.size());
  }

  Dispatch& groups_of(uint32_t rank) { return *processes_[rank].groups; }
  std::vector<Process>& processes() { return processes_; }

  bool all_ended() const {
    for (const Process& process : processes_)
      for (const Sum& sum : process.sums)
        if (!sum.ended) return false;
    return true;
  }

  void check(size_t sum, bool may_fail) const {
    for (const Process& process : processes_) {
      const Sum& own = process.sums[sum];
      MUST(own.ended && (may_fail || !own.failed));
      if (may_fail) continue;
      for (uint64_t i = 0; i < own.out.size(); ++i) {
        uint32_t expected = 0;
        for (const Process& other : processes_) expected += uint32_t(other.sums[sum].in[i]);
        MUST(own.out[i] == int32_t(expected));
      }
    }
  }

 private:
  Input& in_;
  Network network_;
  std::shared_ptr<const GroupInfo> info_;
  std::vector<Process> processes_;
};

FUZZ(in) {
  uint64_t now = 1000 * kSecond;
  auto clock = std::make_unique<SessionClock::Stopped>(now);
  const bool hostile = in.flag();
  const size_t sums = in.between(1, 3);
  Session session(in);
  for (size_t sum = 0; sum < sums; ++sum) {
    session.begin(in.between(0, 1500), sum);
    if (in.flag()) continue;  // several at once
    while (session.step(hostile)) {
    }
  }
  for (uint64_t seconds = 0;;) {
    if (session.step(hostile)) continue;
    if (session.all_ended()) break;
    MUST(hostile && seconds++ < 4 * uint64_t(kTimeoutS));
    clock.reset();
    clock = std::make_unique<SessionClock::Stopped>(now += kSecond);
    for (Process& process : session.processes()) process.groups->check_time();
  }
  for (size_t sum = 0; sum < sums; ++sum) session.check(sum, hostile);
  for (Process& process : session.processes()) process.groups->remove(process.part);
  while (session.step(false)) {
  }
}
