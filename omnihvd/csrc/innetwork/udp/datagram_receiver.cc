#include "innetwork/udp/datagram_receiver.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace omnihvd {

DatagramReceiver::DatagramReceiver(uint32_t first, uint32_t payload, uint32_t window,
                                   uint32_t largest, bool ordered)
    : payload_(payload),
      window_(window),
      largest_(largest),
      ordered_(ordered),
      begin_(first_sequence(first)),
      floor_(begin_),
      next_(begin_) {}

DatagramReceiver::Taken DatagramReceiver::on_datagram(const Datagram& header, const uint8_t* data,
                                                      size_t bytes) {
  if (header.size > largest_ || header.offset > header.size || header.offset % payload_ ||
      (header.offset == header.size && header.size > 0) ||
      bytes != std::min(payload_, header.size - header.offset))
    return Taken::refused;
  const uint64_t sequence = unwrapped(header.sequence, floor_);
  const uint64_t first = sequence - header.offset / payload_;
  if (sequence < begin_ || first < begin_ || sequence >= floor_ + window_) return Taken::refused;
  const uint64_t at = sequence - floor_;
  const bool known = sequence < floor_ || (at < beyond_.size() && beyond_[at]);
  Partial* const message = known ? nullptr : message_of(first, header);
  if (!known && !message) return Taken::refused;
  if (!stamp_ || int32_t(header.stamp - *stamp_) > 0) stamp_ = header.stamp;
  if (known) return Taken::duplicate;

  if (bytes > 0) std::memcpy(message->bytes.data() + header.offset, data, bytes);
  if (beyond_.size() <= at) beyond_.resize(at + 1);
  beyond_[at] = true;
  while (!beyond_.empty() && beyond_.front()) {
    beyond_.pop_front();
    ++floor_;
  }
  if (--message->missing == 0) give_complete(partial_.find(first));
  return Taken::fresh;
}

// Null if it would overlap another message.
DatagramReceiver::Partial* DatagramReceiver::message_of(uint64_t first, const Datagram& header) {
  const uint32_t datagrams = datagrams_of(header.size, payload_);
  const auto after = partial_.lower_bound(first);
  if (after != partial_.end() && after->first == first)
    return after->second.bytes.size() == header.size && after->second.missing > 0 ? &after->second
                                                                                  : nullptr;
  if (after != partial_.end() && after->first < first + datagrams) return nullptr;
  if (after != partial_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.datagrams > first) return nullptr;
  }
  if (ordered_ && first < next_) return nullptr;
  held_ += header.size;
  Partial begun{std::vector<uint8_t>(header.size), datagrams, datagrams};
  return &partial_.emplace(first, std::move(begun)).first->second;
}

void DatagramReceiver::give_complete(std::map<uint64_t, Partial>::iterator at) {
  if (ordered_) at = partial_.find(next_);
  while (at != partial_.end() && at->second.missing == 0) {
    if (ordered_) next_ += at->second.datagrams;
    ready_.push_back(std::move(at->second.bytes));
    partial_.erase(at);
    at = ordered_ ? partial_.find(next_) : partial_.end();
  }
}

bool DatagramReceiver::next_message(std::vector<uint8_t>* message) {
  if (ready_.empty()) return false;
  *message = std::move(ready_.front());
  ready_.pop_front();
  held_ -= message->size();
  return true;
}

Acknowledgement DatagramReceiver::acknowledgement() {
  Acknowledgement made{uint32_t(floor_), stamp_.value_or(0), {}};
  made.bits.resize((beyond_.size() + 7) / 8);
  for (size_t i = 0; i < beyond_.size(); ++i) made.bits[i / 8] |= uint8_t(beyond_[i] << i % 8);
  stamp_.reset();
  return made;
}

}  // namespace omnihvd
