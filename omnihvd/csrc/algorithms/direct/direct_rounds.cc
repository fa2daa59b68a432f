#include "algorithms/direct/direct_rounds.h"

#include <algorithm>
#include <cstring>

#include "numeric/block_ops.h"
#include "numeric/keep_subnormals.h"

namespace omnihvd {
namespace {

constexpr size_t kTiny = 32 << 10;  // bytes that a rank sends if it gives all to all
constexpr size_t kMostBitmap = 4 << 10;
static_assert(sizeof(DirectHeader) + kMostBitmap + DirectRounds::kMostBlock * 8 <=
              DirectRounds::kMessage);

size_t bitmap_of(uint32_t blocks) { return std::min((blocks + 63) / 64 * size_t(8), kMostBitmap); }
bool bit(const uint8_t* bitmap, uint32_t at) { return bitmap[at / 8] >> at % 8 & 1; }

}  // namespace

DirectRounds::Range DirectRounds::share_of(int rank) const {
  if (whole_) return {0, blocks_};
  const auto border = [&](int r) {
    return uint32_t(uint64_t(blocks_) * uint64_t(r) / uint64_t(ranks_));
  };
  return {border(rank), border(rank + 1)};
}

size_t DirectRounds::bytes_of(uint32_t block) const {
  const size_t end = call_.count() * size_of(call_.dtype());
  return std::min(block_bytes_, end - block * block_bytes_);
}

size_t DirectRounds::staged(int rank, uint32_t block) const {
  return size_t(rank) * (mine_.end - mine_.begin) + (block - mine_.begin);
}

bool DirectRounds::lacks(int rank) const {
  const Peer& peer = peers_[size_t(rank)];
  if (gives_left_ > 0) return peer.given < mine_.end;
  return peer.result < results_of(rank).end;
}

void DirectRounds::begin(const void* in, void* out, SmallCall call, uint64_t number) {
  in_ = static_cast<const uint8_t*>(in);
  out_ = static_cast<uint8_t*>(out);
  call_ = call;
  number_ = number;
  block_bytes_ = block_ * size_of(call.dtype());
  blocks_ = uint32_t((call.count() + block_ - 1) / block_);
  const size_t bytes = call.count() * size_of(call.dtype());
  whole_ = ranks_ == 2 || bytes * size_t(ranks_ - 1) <= kTiny;
  mine_ = share_of(rank_);
  const size_t owned = mine_.end - mine_.begin;
  staging_.resize(std::max(staging_.size(), size_t(ranks_) * owned * block_bytes_));
  is_staged_.assign(size_t(ranks_) * owned, 0);
  sums_.resize(block_ * size_t(accumulator_size_of(call.dtype())));
  gives_left_ = owned > 0 ? ranks_ - 1 : 0;
  results_left_ = 0;
  nonzero_ = united_ = 0;
  for (int rank = 0; rank < ranks_; ++rank)
    peers_[size_t(rank)] = {mine_.begin, results_of(rank).begin};
  peers_[size_t(rank_)] = {mine_.end, results_of(rank_).end};
  for (const int rank : others_) results_left_ += results_of(rank).begin < results_of(rank).end;
  const BlockOps& ops = block_ops(call.dtype());
  const auto nonzero = [&](uint32_t block) {
    return ops.inspect(in_ + block * block_bytes_, bytes_of(block) / size_of(call.dtype())).nonzero;
  };
  for (uint32_t block = mine_.begin; block < mine_.end; ++block)
    nonzero_ += is_staged_[staged(rank_, block)] = nonzero(block);
  if (whole_)
    send_mine(DirectHeader::give, in_);
  else
    for (const int rank : others_)
      nonzero_ += send(DirectHeader::give, share_of(rank), in_, nonzero, {rank});
}

void DirectRounds::send_mine(DirectHeader::Kind kind, const uint8_t* from) {
  send(
      kind, mine_, from, [this](uint32_t block) { return is_staged_[staged(rank_, block)] != 0; },
      others_);
}

// Returns how many blocks it has sent.
template <typename NonZero>
uint64_t DirectRounds::send(DirectHeader::Kind kind, Range range, const uint8_t* from,
                            NonZero nonzero, const std::vector<int>& to) {
  uint64_t sent = 0;
  for (uint32_t at = range.begin; at < range.end;) {
    uint8_t* const message = outbox_.room();
    const uint32_t first = at;
    const size_t bitmap_bytes = bitmap_of(range.end - first);
    uint8_t* const bitmap = message + sizeof(DirectHeader);
    uint8_t* data = bitmap + bitmap_bytes;
    std::memset(bitmap, 0, bitmap_bytes);
    for (; at < range.end && at - first < 8 * bitmap_bytes; ++at) {
      if (!nonzero(at)) continue;
      const size_t bytes = bytes_of(at);
      if (data + bytes > message + kMessage) break;
      std::memcpy(data, from + at * block_bytes_, bytes);
      data += bytes;
      bitmap[(at - first) / 8] |= uint8_t(1 << (at - first) % 8);
      ++sent;
    }
    auto& header = *reinterpret_cast<DirectHeader*>(message);
    header.number = number_;
    header.call = call_.word;
    header.kind = kind;
    header.from = uint32_t(rank_);
    header.unused = 0;
    header.first = first;
    header.count = at - first;
    header.bitmap = uint32_t(bitmap_bytes);
    for (const int rank : to) outbox_.send(rank, size_t(data - message));
  }
  return sent;
}

bool DirectRounds::take(const DirectHeader& message, size_t size) {
  const int from = int(message.from);
  const bool given = message.kind == DirectHeader::give;
  Peer& peer = peers_[size_t(from)];
  const uint32_t end = given ? mine_.end : results_of(from).end;
  uint32_t& next = given ? peer.given : peer.result;
  if (message.count == 0 || message.first != next || message.count > end - next) return false;
  size -= sizeof message;
  if (message.bitmap > size || message.count > 8 * uint64_t(message.bitmap)) return false;
  const auto* const bitmap = reinterpret_cast<const uint8_t*>(&message) + sizeof message;
  size_t bytes = message.bitmap;
  for (uint32_t i = 0; i < message.count; ++i)
    if (bit(bitmap, i)) bytes += bytes_of(next + i);
  if (bytes != size) return false;
  const uint8_t* data = bitmap + message.bitmap;
  for (uint32_t i = 0; i < message.count; ++i) {
    const uint32_t block = next + i;
    const bool nonzero = bit(bitmap, i);
    const size_t n = bytes_of(block);
    uint8_t* const to =
        given ? &staging_[staged(from, block) * block_bytes_] : out_ + block * block_bytes_;
    if (nonzero)
      std::memcpy(to, data, n);
    else if (!given)
      std::memset(to, 0, n);
    if (given)
      is_staged_[staged(from, block)] = nonzero;
    else
      united_ += nonzero;
    data += nonzero ? n : 0;
  }
  next += message.count;
  if (next < end) return true;
  if (!given)
    --results_left_;
  else if (--gives_left_ == 0)
    add();
  return true;
}

void DirectRounds::add() {
  const BlockOps& ops = block_ops(call_.dtype());
  const size_t element = size_of(call_.dtype());
  const KeepSubnormals keeps;
  for (uint32_t block = mine_.begin; block < mine_.end; ++block) {
    const size_t n = bytes_of(block) / element;
    bool any = false;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!is_staged_[staged(rank, block)]) continue;
      const uint8_t* const theirs = rank == rank_ ? in_ + block * block_bytes_
                                                  : &staging_[staged(rank, block) * block_bytes_];
      (any ? ops.add : ops.store)(sums_.data(), theirs, n);
      any = true;
    }
    if (any)
      ops.finish(out_ + block * block_bytes_, sums_.data(), n);
    else
      std::memset(out_ + block * block_bytes_, 0, n * element);
    united_ += any;
    is_staged_[staged(rank_, block)] = any;
  }
  if (!whole_) send_mine(DirectHeader::result, out_);
}

}  // namespace omnihvd
