// GroupStream: filling and sending messages.
#include <utility>

#include "base/rare.h"
#include "engine/group_tasks.h"

namespace omnihvd {

// The message to this node for the next frame, which has so many bytes. Frames of one collective
// and direction share messages, so that small ones cost little.
GroupStream::Outgoing& GroupStream::open(uint32_t node, Kind kind, uint64_t sequence,
                                         const Shape* shape, size_t bytes) {
  std::unique_ptr<Outgoing>& out = outgoing_[node];
  if (out && (out->kind != kind || out->sequence != sequence ||
              (shape && !out->message.has_shape()) || out->message.size() + bytes > Message::kFull))
    flush(node);
  if (!out) {
    if (kind == Kind::contribution || kind == Kind::result) ask_for_memory();
    if (pool_.empty()) pool_.push_back(std::make_unique<Outgoing>());
    out = std::move(pool_.back());
    pool_.pop_back();
    out->owner = this;
    out->node = node;
    out->kind = kind;
    out->sequence = sequence;
    Header header;
    header.kind = kind;
    header.stream = uint16_t(stream_);
    header.from = self_;
    header.group = info_->id;
    header.sequence = sequence;
    out->message.begin(header, shape);
  }
  return *out;
}

void GroupStream::flush(uint32_t node) {
  if (!outgoing_[node]) return;
  Outgoing* out = outgoing_[node].get();
  out->place = under_way_.size();
  under_way_.push_back(std::move(outgoing_[node]));
  stats().bytes_sent += out->message.size();
  stats().messages_sent += 1;
  if (out->kind == Kind::contribution || out->kind == Kind::result)
    stats().frames_sent += out->message.frames();
  stats().bytes_copied += out->message.size();  // UCX gathers the slices
  const std::vector<Slice>& slices = peers_[node].out->close(out->message, &out->cipher);
  transport_.send(peers_[node].id, slices.data(), slices.size(), reinterpret_cast<uint64_t>(out));
}

// Starts with the next ranks, so that not all ranks send to the same one.
void GroupStream::flush_all() {
  const auto nodes = uint32_t(outgoing_.size());
  for (uint32_t node = self_; node < nodes; ++node) flush(node);
  for (uint32_t node = 0; node < self_; ++node) flush(node);
}

// Sends to every peer that is still there; dedicated aggregators are ready before any rank is.
void GroupStream::say(Kind kind, const std::string& text) {
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    if (!peers_[node].connected || peers_[node].left) continue;
    if (!all_listen_ && node < info_->workers) continue;
    flush(node);
    open(node, kind, all_listen_, nullptr, 0).message.add_text(text);
    flush(node);
  }
}

void GroupStream::on_sent(uint64_t cookie) {
  Outgoing* out = reinterpret_cast<Outgoing*>(cookie);
  out->owner->sent(out);
}

void GroupStream::sent(Outgoing* out) {
  const size_t place = out->place;
  std::swap(under_way_[place], under_way_.back());
  under_way_[place]->place = place;
  std::unique_ptr<Outgoing> taken = std::move(under_way_.back());
  under_way_.pop_back();
  out->holds.clear();
  const std::shared_ptr<WorkerTask> worker = std::exchange(out->worker, nullptr);
  pool_.push_back(std::move(taken));
  try {
    if (worker) {
      --worker->unsent;
      finish_if_done(*worker);
    }
  } catch (const std::exception& why) {
    fail(words_of(why), true);
  }
}

// Messages in flight stop referring to our memory: the tensors are the callers' again.
void GroupStream::detach_all() {
  for (const auto& out : under_way_) transport_.detach(reinterpret_cast<uint64_t>(out.get()));
  under_way_.clear();
  for (auto& out : outgoing_) out.reset();
}

}  // namespace omnihvd
