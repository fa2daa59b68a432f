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

struct GroupStream::WorkerTask : Router::WorkerPart {
  WorkerTask(const Router& router, const std::shared_ptr<Collective>& c, uint32_t scan_ahead,
             std::optional<uint32_t> home_share)
      : WorkerPart(router, c->sequence, std::shared_ptr<const Layout>(c, &c->layout),
                   c->make_tensor(c->layout), scan_ahead, home_of(c->layout.shape(), home_share)),
        collective(c),
        begun(c->begun),
        touched(Clock::now()) {}

  void report(const std::string* failure) {
    collective->stream_done(failure, worker.nonzero_blocks(), worker.result_blocks());
  }

  const std::shared_ptr<Collective> collective;
  size_t unsent = 0;  // messages in flight that refer to the tensor
  Clock::time_point begun, touched;
  // If tracing(): since when this aggregator's slot waits for a result.
  std::map<std::pair<uint32_t, uint32_t>, Clock::time_point> sent_at;
};

struct GroupStream::AggregatorTask : Router::AggregatorPart {
  AggregatorTask(Router& of, uint64_t sequence_number, const Seat& at, const Shape& shape,
                 uint32_t node)
      : AggregatorPart(of, sequence_number, at, shape),
        first_node(node),
        begun(Clock::now()),
        touched(begun) {}

  const uint32_t first_node;  // the node that sent this shape
  Clock::time_point begun, touched;
  // If tracing(): [slot], when the round's first contribution arrived.
  std::map<uint32_t, Clock::time_point> first_came;
};

inline GroupStream::WorkerTask& GroupStream::task_of(Router::WorkerPart& part) {
  return static_cast<WorkerTask&>(part);
}
inline GroupStream::AggregatorTask& GroupStream::task_of(Router::AggregatorPart& part) {
  return static_cast<AggregatorTask&>(part);
}

// A message being filled or sent.
struct GroupStream::Outgoing {
  GroupStream* owner;
  size_t place;  // in owner->under_way_
  uint32_t node;
  Kind kind;
  uint64_t sequence = 0;
  Message message;
  std::vector<uint8_t> cipher;         // the encrypted bytes that are sent in its place
  std::vector<Router::Kept> holds;     // other memory that it refers to
  std::shared_ptr<WorkerTask> worker;  // the message refers to this worker's tensor
};

}  // namespace omnihvd
