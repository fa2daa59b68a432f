// The parts of one collective in a GroupStream: private to group_stream*.cc.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/group_stream.h"

namespace omnihvd {

inline std::string shape_text(const Shape& shape) {
  return sum_text(shape.count, shape.dtype, shape.codec) +
         (shape.for_one() ? " for rank " + std::to_string(shape.owner) : "");
}

inline std::string collective_text(const Shape& shape) {
  return (shape.for_one() ? "a reduce of " : "an allreduce of ") + shape_text(shape);
}

// The aggregator of this process, by the number that a worker of the shape uses, if it may make the
// sum in that worker's tensor.
inline std::optional<uint32_t> home_of(const Shape& shape, std::optional<uint32_t> share) {
  if (!shape.for_one() || !share) return share;
  return *share == shape.owner ? std::optional<uint32_t>(0) : std::nullopt;
}

// Our worker's part.
struct GroupStream::WorkerTask {
  WorkerTask(std::shared_ptr<Collective> c, uint32_t stream, const Settings& settings,
             std::optional<uint32_t> home_share)
      : collective(std::move(c)),
        tensor(collective->make_tensor(collective->layout)),
        worker(collective->layout, *tensor, settings.scan_ahead, stream, settings.streams,
               home_of(collective->layout.shape(), home_share)),
        begun(collective->begun),
        touched(Clock::now()) {}

  void report(const std::string* failure) {
    collective->stream_done(failure, worker.nonzero_blocks(), worker.result_blocks());
  }

  const std::shared_ptr<Collective> collective;
  const std::unique_ptr<Tensor> tensor;
  Worker worker;
  void contributed(uint32_t aggregator, uint32_t slot) {
    sent_at[{aggregator, slot}] = Clock::now();
  }

  bool started = false;  // in all slots
  size_t unsent = 0;     // messages in flight that refer to the tensor
  Clock::time_point begun, touched;
  // If tracing(): since when this aggregator's slot waits for a result.
  std::map<std::pair<uint32_t, uint32_t>, Clock::time_point> sent_at;
};

// The part of one of our aggregators.
struct GroupStream::AggregatorTask : Aggregator::Sink,
                                     std::enable_shared_from_this<AggregatorTask> {
  AggregatorTask(GroupStream& o, uint64_t sequence_number, const Seat& at, const Shape& shape,
                 uint32_t node)
      : owner(o),
        sequence(sequence_number),
        seat(at),
        layout(shape),
        members(o.info_->seats->members(seat.level, o.self_)),
        aggregator(layout, seat.share, members, o.stream_, o.info_->settings.streams,
                   o.info_->settings.deterministic, o.info_->seats->below(seat, o.self_)),
        first_node(node),
        begun(Clock::now()),
        touched(begun) {}

  void result(const Frame& frame) override { owner.publish(*this, frame); }
  void contribution(const Frame& frame) override { owner.pass_up(*this, frame); }

  bool is_below() const { return seat.level < owner.info_->seats->levels(); }
  Seat above() const { return {seat.level + 1, seat.share}; }
  uint32_t node_of(uint32_t member) const {
    return owner.info_->seats->host_of_member(seat, owner.self_, member);
  }

  GroupStream& owner;
  const uint64_t sequence;
  const Seat seat;
  const Layout layout;
  const uint32_t members;
  Aggregator aggregator;
  const uint32_t first_node;  // the node that sent this shape
  Clock::time_point begun, touched;
  uint32_t speaking = 0;  // the sender of the contribution in progress
  // If tracing(): [slot], when the round's first contribution arrived.
  std::map<uint32_t, Clock::time_point> first_came;
};

// Holds the memory of a frame of one of our aggregators until nobody refers to it.
struct GroupStream::Loan {
  Loan(const std::shared_ptr<AggregatorTask>& of, const Frame& frame)
      : task(of), slot(frame.slot), round(frame.round) {}
  Loan(const Loan&) = delete;
  ~Loan() { task->owner.releases_.push_back({task, slot, round}); }

  const std::shared_ptr<AggregatorTask> task;
  const uint32_t slot, round;
};

// A result that is passed on: its blocks arrived in a message, or belong to someone else.
struct GroupStream::Copied {
  Copied(const Frame& of, const Layout& layout, uint32_t aggregator);
  Frame frame;
  std::vector<uint8_t> bytes;
};

// A message being filled or sent.
struct GroupStream::Outgoing {
  GroupStream* owner;
  size_t place;  // in owner->under_way_
  uint32_t node;
  Kind kind;
  uint64_t sequence = 0;
  Message message;
  std::vector<uint8_t> cipher;         // the encrypted bytes that are sent in its place
  std::vector<Hold> holds;             // other memory that it refers to
  std::shared_ptr<WorkerTask> worker;  // the message refers to this worker's tensor
};

}  // namespace omnihvd
