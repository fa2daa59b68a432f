// A progress thread of a simulated process, with its slots of the sum. It treats messages as
// engine/group_stream.cc does: it takes all that have arrived, starts some slots, and sends each
// other process its frames together, in messages of at most Message::kFull.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "protocol/aggregator.h"
#include "protocol/frame_bytes.h"
#include "protocol/worker.h"
#include "simulator/csrc/world.h"

namespace omnihvd::simulation {

class EngineThread {
 public:
  // self: its host. all: the threads of all hosts, [host * streams + stream], filled after this
  // call.
  EngineThread(World& world, std::vector<std::unique_ptr<EngineThread>>& all, uint32_t self,
               uint32_t stream);
  ~EngineThread();

  void begin();
  bool done() const;
  void take(std::shared_ptr<const Letter> letter);
  size_t peers() const { return peers_.size(); }  // processes to which it has sent
  size_t accumulator_bytes() const;               // with blocks as large as the job's

 private:
  class Ones;
  struct Node;

  void wake();
  double work();
  void end_of_work();
  void open(Letter& letter);
  void start_slots();
  void pay(double seconds) { spent_ += seconds; }
  void pay_for_message(double bytes) { pay(world_.costs.message_s + bytes * world_.costs.byte_s); }
  void pay_for_inspection();

  void contribute(const Seat& seat, uint32_t member, const Frame& frame);
  void hear(const Seat& seat, const std::shared_ptr<const Parcel>& parcel);
  void spread(const Node& node, const std::shared_ptr<const Parcel>& parcel);
  Node& node_at(const Seat& seat);
  std::shared_ptr<const Parcel> parcel_of(const Frame& frame, const Seat& seat, double* bytes);
  void put(uint32_t to, bool is_result, const Seat& seat, std::shared_ptr<const Parcel> parcel,
           double bytes);
  void send(uint32_t to, std::shared_ptr<Letter> letter);

  World& world_;
  std::vector<std::unique_ptr<EngineThread>>& all_;
  const uint32_t self_, stream_;
  std::map<uint64_t, std::unique_ptr<Node>> nodes_;  // its aggregators, by role
  std::unique_ptr<Ones> tensor_;
  std::optional<Worker> worker_;
  bool busy_ = false, started_ = false, is_late_ = true, is_told_ = false;
  double spent_ = 0;        // processor seconds of the current work
  uint64_t inspected_ = 0;  // blocks already charged
  Frame reply_;
  FrameBytes encoded_;
  std::vector<std::shared_ptr<const Letter>> inbox_;
  std::map<std::pair<uint32_t, bool>, std::shared_ptr<Letter>> open_;  // being filled
  std::deque<Letter::Enclosed> own_results_;
  std::vector<std::pair<Seat, std::pair<uint32_t, uint32_t>>> released_;  // slot, round
  std::set<uint32_t> peers_;
};

}  // namespace omnihvd::simulation
