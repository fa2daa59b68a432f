// The parts of one collective in a GroupStream: private to group_stream*.cc.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "session/group_stream.h"

namespace omnihvd {

inline std::string shape_text(const Shape& shape) {
  return sum_text(shape.count, shape.dtype, shape.codec);
}

// Our worker's part.
struct GroupStream::WorkerTask {
  WorkerTask(std::shared_ptr<Collective> c, uint32_t stream, const Settings& settings,
             std::optional<uint32_t> own_aggregator)
      : collective(std::move(c)),
        tensor(collective->make_tensor(collective->layout)),
        worker(collective->layout, *tensor, settings.scan_ahead, stream, settings.streams,
               own_aggregator),
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
  size_t unsent = 0;     // messages that refer to the tensor
  Clock::time_point touched;
  // If tracing(): since when the slot of this aggregator waits for a result.
  std::map<std::pair<uint32_t, uint32_t>, Clock::time_point> sent_at;
};

// Our aggregator's part.
struct GroupStream::AggregatorTask : Aggregator::Sink {
  AggregatorTask(GroupStream& o, uint64_t s, const Shape& shape, uint32_t worker, uint32_t index,
                 const GroupInfo& info, uint32_t stream)
      : owner(o),
        sequence(s),
        layout(shape),
        aggregator(layout, index, info.workers, stream, info.settings.streams,
                   info.settings.deterministic),
        first_worker(worker),
        lent(shape.slots),
        begun(Clock::now()),
        touched(begun) {}

  void result(const Frame& frame) override { owner.publish(*this, frame); }

  GroupStream& owner;
  const uint64_t sequence;
  const Layout layout;
  Aggregator aggregator;
  const uint32_t first_worker;  // whose shape this is
  // [slot][round % 2]: who still refers to the result
  std::vector<std::array<uint32_t, 2>> lent;
  const Clock::time_point begun;
  Clock::time_point touched;
  uint32_t speaking = 0;  // whose contribution is being taken
  // If tracing(): [slot], when the first contribution of the round came.
  std::map<uint32_t, Clock::time_point> first_came;
};

// A message being filled or sent.
struct GroupStream::Outgoing {
  GroupStream* owner;
  size_t place;  // in owner->under_way_
  Kind kind;
  uint64_t sequence = 0;
  Message message;
  std::vector<uint8_t> cipher;         // what is sent in its place, encrypted
  std::vector<Release> releases;       // what it refers to of our aggregator
  std::shared_ptr<WorkerTask> worker;  // whose tensor it refers to
};

}  // namespace omnihvd
