#include "session/group_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "session/group_tasks.h"
#include "session/stats.h"
#include "session/trace.h"

namespace omnihvd {
namespace {

// What is merely overtaken comes at once.
constexpr auto kGapLimit = std::chrono::seconds(2);

constexpr size_t kInspectAtOnce = 4 << 20;  // bytes of the tensor: 0.1 to 0.2 ms

// Sums that do not lie in this process's tensor came or come there by a copy.
void count_copied(const Frame& frame) {
  uint64_t bytes = 0;
  for (const BlockRef& block : frame.blocks) bytes += block.home ? 0 : block.bytes;
  stats().bytes_copied += bytes;
}

}  // namespace

GroupStream::GroupStream(std::shared_ptr<const GroupInfo> info, uint32_t self, uint32_t stream,
                         Transport& transport, Failed failed)
    : info_(std::move(info)),
      self_(self),
      stream_(stream),
      transport_(transport),
      failed_(std::move(failed)),
      peers_(info_->nodes.size()),
      outgoing_(info_->nodes.size()) {
  for (uint32_t index = 0; index < info_->aggregators(); ++index)
    if (info_->aggregator_node(index) == self) own_aggregator_ = index;
  try {
    for (uint32_t node = 0; node < peers_.size(); ++node) {
      // Dedicated aggregators do not speak to each other, nor workers that all use such.
      const bool both_workers = node < info_->workers && self < info_->workers;
      const bool both_aggregators = node >= info_->workers && self >= info_->workers;
      if (node == self || both_aggregators || (both_workers && info_->dedicated())) continue;
      Peer& peer = peers_[node];
      const std::string& address = info_->address(node, stream);
      // What dedicated aggregators and we know of each other has come over the network: a host that
      // is said to be ours is not taken for it.
      const bool inside = both_workers && transport_.is_local(address);
      const Protection asked =
          info_->settings.encrypt && !inside ? Protection::encrypted : Protection::token;
      peer.in = std::make_unique<Seal>(*info_, stream, node, self, asked);
      peer.out = std::make_unique<Seal>(*info_, stream, self, node, asked);
      peer.id = transport_.connect(address);
      peer.connected = true;
    }
  } catch (...) {
    disconnect_all();
    throw;
  }
}

GroupStream::~GroupStream() = default;

void GroupStream::start(std::shared_ptr<Collective> collective) {
  std::shared_ptr<WorkerTask> task;
  try {
    if (left_) fail("this rank has left the group", false);
    if (!failure_)
      task = std::make_shared<WorkerTask>(collective, stream_, info_->settings, own_aggregator_);
    // Who had nothing to do here may have seen the collective's end already.
    for (uint32_t node = 0; node < peers_.size() && !failure_; ++node)
      if (peers_[node].left && !task->worker.done())
        fail(info_->name_of(node) + " has left the job", true);
  } catch (const std::exception& why) {
    fail(why.what(), true);
  }
  if (failure_)
    collective->stream_done(&*failure_, 0, 0);
  else
    workers_.emplace(collective->sequence, std::move(task));
}

bool GroupStream::work() {
  bool worked = !releases_.empty() || !self_results_.empty();
  try {
    for (const Release& r : std::exchange(releases_, {})) release(r.task, r.slot, r.round);
    for (size_t n = self_results_.size(); n > 0 && !self_results_.empty(); --n) {
      const SelfResult result = std::move(self_results_.front());
      self_results_.pop_front();
      take_result(result.task->sequence, *own_aggregator_, result.frame);
      release(result.task, result.frame.slot, result.frame.round);
    }
    for (auto at = workers_.begin(); at != workers_.end();) {
      const std::shared_ptr<WorkerTask> task = (at++)->second;  // may go meanwhile
      if (task->started) continue;
      worked = true;
      const Clock::time_point begin = tracing() ? Clock::now() : Clock::time_point();
      start_slots(*task);
      if (tracing())
        trace({"inspect", begin, Clock::now(), {{{"collective", task->collective->sequence}}}});
      finish_if_done(*task);
    }
  } catch (const std::exception& why) {
    fail(why.what(), true);
  }
  flush_all();
  return worked;
}

// Some slots at a time: enough to fill a message to each aggregator where there is little to say,
// few enough to say it soon, and to hear the others meanwhile.
void GroupStream::start_slots(WorkerTask& task) {
  const Shape& shape = task.collective->layout.shape();
  const size_t more = std::max<size_t>(1, shape.aggregators / 4);
  const uint64_t end = task.worker.inspected_blocks() + more * kInspectAtOnce / shape.block_bytes();
  size_t bytes = 0;
  uint32_t aggregator;
  while (bytes < more * Message::kFull / 2 && task.worker.inspected_blocks() < end) {
    if (!task.worker.start(&aggregator, &reply_)) {
      task.started = true;
      return;
    }
    contribute(task, aggregator, reply_, true);
    for (const BlockRef& block : reply_.blocks) bytes += block.bytes;
  }
}

void GroupStream::contribute(WorkerTask& task, uint32_t aggregator, const Frame& frame,
                             bool first) {
  const uint64_t sequence = task.collective->sequence;
  const Shape& shape = task.collective->layout.shape();
  if (tracing()) task.contributed(aggregator, frame.slot);
  if (own_aggregator_ == aggregator) {
    AggregatorTask& own = *aggregator_task(sequence, &shape, self_);
    own.touched = Clock::now();
    take_contribution(own, self_, frame);
    retire(own);
    return;
  }
  frame_bytes_.encode(frame, task.collective->layout, aggregator);
  count_coded(task.collective->layout, frame, 1);
  Outgoing& out = open(info_->aggregator_node(aggregator), Kind::contribution, sequence,
                       first ? &shape : nullptr, frame_bytes_.size());
  if (out.message.add(frame_bytes_)) refer_to_worker(out, sequence);
}

void GroupStream::take_contribution(AggregatorTask& task, uint32_t worker, const Frame& frame) {
  task.speaking = worker;
  if (tracing()) task.first_came.emplace(frame.slot, task.touched);
  task.aggregator.on_contribution(worker, frame, task);
}

// The message holds references to our worker's tensor, which has to stay as it is until it is sent.
void GroupStream::refer_to_worker(Outgoing& out, uint64_t sequence) {
  if (out.worker) return;
  out.worker = workers_.at(sequence);
  ++out.worker->unsent;
}

// A result for our worker, from another process or our own aggregator.
void GroupStream::take_result(uint64_t sequence, uint32_t aggregator, const Frame& frame) {
  const auto found = workers_.find(sequence);
  if (found == workers_.end())
    throw Error("a result for collective " + std::to_string(sequence) + ", which is not under way");
  const std::shared_ptr<WorkerTask> task = found->second;
  task->touched = Clock::now();
  if (tracing()) trace_round(*task, aggregator, frame);
  count_copied(frame);
  if (task->worker.on_result(aggregator, frame, &reply_))
    contribute(*task, aggregator, reply_, false);
  finish_if_done(*task);
}

void GroupStream::on_message(const Header& header, const uint8_t* data, size_t size) {
  const std::optional<uint32_t> sender = sender_of(header);
  if (!sender) throw Error("a sender that is not a member of the group");
  const uint8_t* plain = peers_[*sender].in->open(header, data, size, &plain_);
  if (!plain)
    throw Error("it says to be of " + info_->name_of(*sender) +
                ", but was forged or damaged, has come before, or before its time");
  if (failure_ || left_) return;  // what was under way when we stopped
  stats().bytes_received += size;
  try {
    MessageReader reader(plain, size);
    switch (header.kind) {
      case Kind::contribution: on_contribution(reader); break;
      case Kind::result: on_result(reader); break;
      case Kind::abort: fail(reader.text(), false); break;
      case Kind::leave: on_leave(*sender); break;
    }
  } catch (const std::exception& why) {
    fail("message from " + info_->name_of(*sender) + ": " + why.what(), true);
  }
}

// Whom it says to come from.
std::optional<uint32_t> GroupStream::sender_of(const Header& header) const {
  uint32_t node = header.from;
  if (header.kind == Kind::result) {
    if (header.from >= info_->aggregators()) return std::nullopt;
    node = info_->aggregator_node(header.from);
  }
  if (header.kind == Kind::contribution && node >= info_->workers) return std::nullopt;
  if (node >= peers_.size() || !peers_[node].connected) return std::nullopt;
  return node;
}

void GroupStream::on_contribution(MessageReader& reader) {
  const uint32_t worker = reader.header().from;
  std::optional<Shape> shape;
  if (reader.has_shape()) shape = reader.shape();
  const std::shared_ptr<AggregatorTask> task =
      aggregator_task(reader.header().sequence, shape ? &*shape : nullptr, worker);
  task->touched = Clock::now();
  const auto named = [&](uint32_t slot, uint32_t round) {
    return task->aggregator.named(worker, slot, round);
  };
  while (reader.next(task->layout, *own_aggregator_, named, &scratch_))
    take_contribution(*task, worker, scratch_);
  retire(*task);
}

void GroupStream::on_result(MessageReader& reader) {
  const auto found = workers_.find(reader.header().sequence);
  if (found == workers_.end()) throw Error("a result for a collective that is not under way");
  const std::shared_ptr<WorkerTask> task = found->second;
  while (reader.next(task->collective->layout, reader.header().from, nullptr, &scratch_))
    take_result(reader.header().sequence, reader.header().from, scratch_);
}

std::shared_ptr<GroupStream::AggregatorTask> GroupStream::aggregator_task(uint64_t sequence,
                                                                          const Shape* shape,
                                                                          uint32_t worker) {
  if (!own_aggregator_) throw Error("a contribution to a process that does not aggregate");
  auto found = aggregators_.find(sequence);
  if (found != aggregators_.end()) {
    const Shape& first = found->second->layout.shape();
    if (shape && *shape != first)
      throw Error("the ranks disagree about allreduce number " + std::to_string(sequence) + ": " +
                  info_->name_of(worker) + " sums " + shape_text(*shape) + ", " +
                  info_->name_of(found->second->first_worker) + " sums " + shape_text(first) +
                  disagreement(shape->codec, first.codec));
    return found->second;
  }
  if (!shape) throw Error("a contribution to a collective that has not begun");
  if (*shape != info_->shape_of(shape->count, shape->dtype, shape->codec))
    throw Error("a shape that this group's settings do not give");
  auto task = std::make_shared<AggregatorTask>(*this, sequence, *shape, worker, *own_aggregator_,
                                               *info_, stream_);
  aggregators_.emplace(sequence, task);
  return task;
}

// A result of our aggregator: to all workers, to our own without a message.
void GroupStream::publish(AggregatorTask& task, const Frame& frame) {
  const std::shared_ptr<AggregatorTask> shared = aggregators_.at(task.sequence);
  count_last(task.speaking);
  if (tracing()) trace_gathering(task, frame);
  count_copied(frame);  // when the first contribution came
  uint32_t& lent = task.lent[frame.slot][frame.round % 2];
  lent = 0;
  const bool at_home = std::any_of(frame.blocks.begin(), frame.blocks.end(),
                                   [](const BlockRef& block) { return block.home; });
  frame_bytes_.encode(frame, task.layout, *own_aggregator_);
  count_coded(task.layout, frame, info_->workers - (self_ < info_->workers));
  for (uint32_t node = 0; node < info_->workers; ++node) {
    if (node == self_) {
      self_results_.push_back({shared, frame});
      ++lent;
      continue;
    }
    Outgoing& out = open(node, Kind::result, task.sequence, nullptr, frame_bytes_.size());
    if (out.message.add(frame_bytes_)) {
      out.releases.push_back({shared, frame.slot, frame.round});
      ++lent;
      if (at_home) refer_to_worker(out, task.sequence);
    }
  }
  if (lent == 0) {
    lent = 1;
    releases_.push_back({shared, frame.slot, frame.round});
  }
}

void GroupStream::release(const std::shared_ptr<AggregatorTask>& task, uint32_t slot,
                          uint32_t round) {
  if (--task->lent[slot][round % 2] > 0 || failure_) return;
  task->aggregator.released(slot, round, *task);
  retire(*task);
}

// Forgets a collective whose sums are all published; messages under way keep what they refer to.
void GroupStream::retire(AggregatorTask& task) {
  if (task.aggregator.done()) aggregators_.erase(task.sequence);
}

// From a contribution to the result: what this rank waited for.
void GroupStream::trace_round(WorkerTask& task, uint32_t aggregator, const Frame& frame) {
  const auto sent = task.sent_at.find({aggregator, frame.slot});
  // Who had nothing in this window has not spoken, and waits since the last result.
  const Clock::time_point since =
      sent == task.sent_at.end() ? task.collective->begun : sent->second;
  trace({"round",
         since,
         task.touched,
         {{{"aggregator", info_->aggregator_node(aggregator)},
           {"slot", frame.slot},
           {"blocks", frame.blocks.size()}}}});
  task.contributed(aggregator, frame.slot);
}

// From the first contribution of a round to the last, and whose that was.
void GroupStream::trace_gathering(AggregatorTask& task, const Frame& frame) {
  const auto first = task.first_came.find(frame.slot);
  if (first == task.first_came.end()) return;
  trace({"waiting",
         first->second,
         Clock::now(),
         {{{"for_rank", task.speaking}, {"slot", frame.slot}, {"blocks", frame.blocks.size()}}}});
  task.first_came.erase(first);
}

void GroupStream::finish_if_done(WorkerTask& task) {
  if (!task.started || !task.worker.done() || task.unsent > 0) return;
  const auto found = workers_.find(task.collective->sequence);
  if (found == workers_.end()) return;
  const std::shared_ptr<WorkerTask> last = found->second;
  workers_.erase(found);
  last->report(nullptr);
}

void GroupStream::fail(const std::string& reason, bool tell) {
  if (failure_) return;
  failure_ = reason;
  detach_all();
  if (tell) say(Kind::abort, reason);
  aggregators_.clear();
  self_results_.clear();
  releases_.clear();
  for (auto& [sequence, task] : std::exchange(workers_, {})) task->report(&*failure_);
  failed_(reason);
}

void GroupStream::on_peer_failed(PeerId id, const std::string& reason) {
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    const Peer& peer = peers_[node];
    if (peer.connected && peer.id == id && !peer.left)
      fail("lost the connection to " + info_->name_of(node) + ": " + reason, true);
  }
}

void GroupStream::check_gaps(Clock::time_point now) {
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    if (!peers_[node].connected) continue;
    const auto since = peers_[node].in->gap_since();
    if (since && now - *since > kGapLimit)
      return fail("messages of " + info_->name_of(node) + " were lost or damaged on their way",
                  true);
  }
}

bool GroupStream::deserted() const {
  return self_ >= info_->workers &&
         (failure_ || std::all_of(peers_.begin(), peers_.end(),
                                  [](const Peer& peer) { return !peer.connected || peer.left; }));
}

void GroupStream::leave() {
  if (left_) return;
  // To the others it is no departure if they wait for results.
  if (!workers_.empty()) fail(info_->name_of(self_) + " left in the middle of an allreduce", true);
  if (!failure_) say(Kind::leave, "");
  detach_all();
  left_ = true;
  disconnect_all();
}

void GroupStream::disconnect_all() {
  for (const Peer& peer : peers_)
    if (peer.connected) transport_.disconnect(peer.id);
}

}  // namespace omnihvd
