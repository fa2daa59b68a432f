// Drives the workers and aggregators of one progress thread of a process: decides where each frame
// goes, when slots start, and how much is inspected at once. Pure: a Driver takes frames to other
// processes. The engine (engine/group_stream.h) and the simulator (simulator/csrc/sum.cc) each
// have a driver, so both exchange the same frames.
//
// A worker or a child aggregator sends its contribution to its parent aggregator; results come down
// the tree (seats.h). Contributions to an aggregator of this process are taken at once, its results
// for this process when it next works.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/aggregator.h"
#include "protocol/frame.h"
#include "protocol/layout.h"
#include "protocol/seats.h"
#include "protocol/tensor.h"
#include "protocol/worker.h"

namespace omnihvd {

class Router {
 public:
  // A frame. Its memory stays alive and unchanged as long as somebody has this.
  using Kept = std::shared_ptr<const Frame>;

  // This process's worker in a collective.
  struct WorkerPart {
    WorkerPart(const Router& router, uint64_t sequence_number, std::shared_ptr<const Layout> of,
               std::unique_ptr<Tensor> over, uint32_t scan_ahead,
               std::optional<uint32_t> local_aggregator = {})
        : sequence(sequence_number),
          layout(std::move(of)),
          tensor(std::move(over)),
          worker(*layout, *tensor, scan_ahead, router.stream_, router.streams_, local_aggregator),
          block_bytes(layout->shape().block_bytes()) {}

    bool done() const { return started && worker.done(); }

    const uint64_t sequence;
    const std::shared_ptr<const Layout> layout;
    const std::unique_ptr<Tensor> tensor;
    Worker worker;
    size_t block_bytes;    // larger than the layout's if a block stands for a larger one
    bool started = false;  // in all slots
  };

  // One of this process's aggregators in a collective.
  struct AggregatorPart : Aggregator::Sink, std::enable_shared_from_this<AggregatorPart> {
    AggregatorPart(Router& of, uint64_t sequence_number, const Seat& at, const Shape& shape);

    void result(const Frame& frame) override { router.publish(*this, frame); }
    void contribution(const Frame& frame) override { router.pass_up(*this, frame); }

    bool is_below() const { return seat.level < router.seats_.levels(); }
    Seat above() const { return {seat.level + 1, seat.share}; }
    uint32_t node_of(uint32_t member) const {
      return router.seats_.host_of_member(seat, router.self_, member);
    }

    Router& router;
    const uint64_t sequence;
    const Seat seat;
    const Layout layout;
    const uint32_t members;
    Aggregator aggregator;
    uint32_t speaking = 0;  // the sender of the contribution in progress
  };

  // Takes frames to other processes, and is told what happens.
  class Driver {
   public:
    virtual ~Driver() = default;
    // A contribution to an aggregator. kept: null if the frame refers to our worker's tensor.
    virtual void send_up(uint32_t node, uint64_t sequence, const Layout& layout, const Seat& seat,
                         const Frame& frame, const Kept& kept) = 0;
    // A result, to members in other processes.
    virtual void send_down(const std::vector<uint32_t>& nodes, const AggregatorPart& part,
                           const Kept& result) = 0;
    // Makes the part for the first contribution to a role, by `node`. Throws Error if the group
    // does not give this shape.
    virtual std::shared_ptr<AggregatorPart> begin(uint64_t sequence, const Seat& seat,
                                                  const Shape& shape, uint32_t node) = 0;
    // A later contribution has another shape than the part: throws Error.
    virtual void disagree(const AggregatorPart& part, const Shape& shape, uint32_t node) = 0;
    // Keeps a frame of the part's aggregator, such as by lend().
    virtual Kept keep(AggregatorPart& part, const Frame& frame) = 0;
    // Keeps a result of the part's parent for the members, such as by copy(). arrived: null, or the
    // same frame, kept already.
    virtual Kept pass_on(const AggregatorPart& part, const Frame& frame, const Kept& arrived) = 0;

    // Events, for traces, statistics and time-outs.
    virtual void contributes(WorkerPart&, uint32_t /*aggregator*/, const Frame&) {}
    virtual void takes_result(WorkerPart&, uint32_t /*aggregator*/, const Frame&) {}
    virtual void took_result(WorkerPart&) {}
    virtual void takes_contribution(AggregatorPart&, const Frame&) {}
    virtual void takes_result(AggregatorPart&) {}
    virtual void gathered(AggregatorPart&, const Frame&) {}  // a round's contributions
  };

  using Workers = std::map<uint64_t, std::shared_ptr<WorkerPart>>;  // by sequence
  using Aggregators = std::map<std::pair<uint64_t, Seat>, std::shared_ptr<AggregatorPart>>;

  // self: the process, as Seats numbers it. ordered: as in Aggregator. `seats` and the driver must
  // outlive the router, and the router its frames and parts.
  Router(Driver& driver, const Seats& seats, uint32_t self, uint32_t stream, uint32_t streams,
         bool ordered);

  // Takes up our worker's part; false if there is one of this sequence already.
  bool add(const std::shared_ptr<WorkerPart>& part) {
    return workers_.emplace(part->sequence, part).second;
  }
  // Starts some slots: enough to fill a message to each aggregator if there is little to send, but
  // few enough to send it soon and to hear the others meanwhile.
  void start_slots(WorkerPart& part);
  // The part that a contribution of `node` to this role goes to. shape: null if it has none. Throws
  // Error if there can be no such contribution.
  std::shared_ptr<AggregatorPart> aggregator(uint64_t sequence, const Seat& seat,
                                             const Shape* shape, uint32_t node);
  // Throws Error, without effect, if the frame is not awaited.
  void on_contribution(AggregatorPart& part, uint32_t node, const Frame& frame);
  // The layout of a result that `node` sends for this role. Throws Error if nobody waits for it.
  const Layout& layout_of_result(uint64_t sequence, const Seat& seat, uint32_t node) const;
  // A result of the aggregator with this role in our group. kept: null, or the frame.
  void on_result(uint64_t sequence, const Seat& seat, const Frame& frame, const Kept& kept);
  // Takes memory back that frames no longer refer to, and our aggregators' results for ourselves;
  // false if there was nothing. Bounded.
  bool work();
  void forget(uint64_t sequence) { workers_.erase(sequence); }  // our worker's part
  // Forgets all parts for good. Returns those of workers.
  Workers stop();

  // The frame keeps its aggregator's memory until nobody refers to it.
  Kept lend(AggregatorPart& part, const Frame& frame);
  // Nobody refers to the memory of this frame of the part's aggregator.
  void release(AggregatorPart& part, uint32_t slot, uint32_t round) {
    releases_.push_back({part.shared_from_this(), slot, round});
  }
  // Copies a result to pass it on. Listed blocks become packed ones, as an aggregator holds them.
  static Kept copy(const Frame& frame, const Layout& layout, uint32_t aggregator);

  const Workers& workers() const { return workers_; }
  const Aggregators& aggregators() const { return aggregators_; }

 private:
  struct Loan;
  struct Release {
    std::shared_ptr<AggregatorPart> part;
    uint32_t slot, round;
  };
  struct OwnResult {  // from our aggregator to our worker or child aggregator: no message
    uint64_t sequence;
    Seat seat;
    Kept frame;
  };

  const std::shared_ptr<WorkerPart>& worker(uint64_t sequence) const;
  const std::shared_ptr<AggregatorPart>& child(uint64_t sequence, const Seat& seat) const;
  void contribute(WorkerPart& part, uint32_t aggregator, const Frame& frame);
  void contribute_here(uint64_t sequence, const Seat& seat, const Shape& shape, const Frame& frame);
  void pass_up(AggregatorPart& part, const Frame& frame);
  void publish(AggregatorPart& part, const Frame& frame);
  void spread(AggregatorPart& part, const Kept& result);
  void retire(AggregatorPart& part);

  Driver& driver_;
  const Seats& seats_;
  const uint32_t self_, stream_, streams_;
  const bool ordered_;
  bool stopped_ = false;
  std::vector<Release> releases_;  // due, but not from within the state machine's own call
  Workers workers_;
  Aggregators aggregators_;
  std::deque<OwnResult> own_results_;
  std::vector<uint32_t> receivers_;  // scratch
  Frame reply_;
};

}  // namespace omnihvd
