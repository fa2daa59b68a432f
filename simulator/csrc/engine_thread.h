// A progress thread of a simulated process, with its slots of the sum: the engine's Router over the
// simulated network. It takes all messages that have arrived, starts some slots, and sends each
// other process its frames together, in messages of at most Message::kFull.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "protocol/frame_bytes.h"
#include "protocol/router.h"
#include "simulator/csrc/world.h"

namespace omnihvd::simulation {

class EngineThread : private Router::Driver {
 public:
  // self: its host. all: the threads of all hosts, [host * streams + stream], filled after this
  // call.
  EngineThread(World& world, std::vector<std::unique_ptr<EngineThread>>& all, uint32_t self,
               uint32_t stream);
  ~EngineThread() override;

  void begin();
  bool done() const;
  void take(std::shared_ptr<const Letter> letter);
  size_t peers() const { return peers_.size(); }  // processes to which it has sent

 private:
  class Ones;

  // The Router's driver.
  void send_up(uint32_t node, uint64_t sequence, const Layout& layout, const Seat& seat,
               const Frame& frame, const Router::Kept& kept) override;
  void send_down(const std::vector<uint32_t>& nodes, const Router::AggregatorPart& part,
                 const Router::Kept& result) override;
  std::shared_ptr<Router::AggregatorPart> begin(uint64_t sequence, const Seat& seat,
                                                const Shape& shape, uint32_t node) override;
  void disagree(const Router::AggregatorPart& part, const Shape& shape, uint32_t node) override;
  Router::Kept keep(Router::AggregatorPart& part, const Frame& frame) override;
  Router::Kept pass_on(const Router::AggregatorPart& part, const Frame& frame,
                       const Router::Kept& arrived) override;
  void contributes(Router::WorkerPart& part, uint32_t aggregator, const Frame& frame) override;

  bool starts() const { return worker_ && !is_late_ && !worker_->started; }
  void wake();
  double work();
  void end_of_work();
  void pay(double seconds) { spent_ += seconds; }
  void pay_for_message(double bytes) { pay(world_.costs.message_s + bytes * world_.costs.byte_s); }
  void pay_for_inspection();

  double encode(const Frame& frame, const Seat& seat);
  void put(uint32_t to, bool is_result, const Seat& seat, Router::Kept frame, double bytes);
  void send(uint32_t to, std::shared_ptr<Letter> letter);

  World& world_;
  const Job& job_;
  std::vector<std::unique_ptr<EngineThread>>& all_;
  const uint32_t self_, stream_;
  Router router_;
  std::shared_ptr<Router::WorkerPart> worker_;  // null: a dedicated aggregator
  bool busy_ = false, starting_ = false, is_late_ = true, is_told_ = false;
  double spent_ = 0;        // processor seconds of the current work
  uint64_t inspected_ = 0;  // blocks already charged
  FrameBytes encoded_;
  std::vector<std::shared_ptr<const Letter>> inbox_;
  std::map<std::pair<uint32_t, bool>, std::shared_ptr<Letter>> open_;  // being filled
  std::set<uint32_t> peers_;
};

}  // namespace omnihvd::simulation
