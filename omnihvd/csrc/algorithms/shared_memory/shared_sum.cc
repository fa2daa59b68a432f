#include "algorithms/shared_memory/shared_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/host_facts.h"
#include "engine/stats.h"
#include "numeric/block_coder.h"
#include "numeric/block_ops.h"

namespace omnihvd {
namespace {

constexpr uint16_t kNobody = 0xFFFF;
constexpr size_t kAccumulatorElement = 8;  // bytes, at most

size_t copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return bytes;
}

}  // namespace

struct SharedSum::Sum {
  Sum(const void* from, void* to, uint64_t elements, DType type, const Codec& by)
      : in(static_cast<const uint8_t*>(from)),
        out(static_cast<uint8_t*>(to)),
        count(elements),
        dtype(type),
        codec(by.lossy() ? by : Codec()),  // nothing else is sent
        element(size_of(type)),
        ops(block_ops(type)) {}
  const uint8_t* in;
  uint8_t* out;
  uint64_t count;
  DType dtype;
  Codec codec;
  size_t element;
  const BlockOps& ops;

  uint64_t bytes() const { return count * element; }
  bool in_place() const { return in == out; }

  Blocks given, taken;             // blocks of this rank's tensor
  bool whole = true;               // false: sums this host's ranks only, and is not coded as a sum
  bool scattered = false;          // no allgather follows
  uint8_t* noted = nullptr;        // [block] set if any rank has something
  const uint8_t* known = nullptr;  // [block] set if there may be something
  bool fill = in != out;           // writes zeros where no rank has anything
};

struct SharedSum::Chunk {
  uint64_t number;        // of all sums
  uint64_t begin, bytes;  // in the tensor
  size_t block_bytes;

  uint64_t first() const { return begin / block_bytes; }
  uint32_t blocks() const { return uint32_t((bytes + block_bytes - 1) / block_bytes); }
  size_t bytes_of(uint32_t block) const {
    return std::min<size_t>(block_bytes, bytes - block * block_bytes);
  }
};

std::unique_ptr<SharedSum> SharedSum::create(Exchange& exchange, const Settings& agreed,
                                             const std::string& host, std::string* obstacle,
                                             std::vector<int> numbers) {
  if (exchange.size() >= kNobody) {
    *obstacle = "too many ranks";
    return nullptr;
  }
  const SharedLayout layout(agreed.block_size, exchange.size());
  if (agreed.block_size * kAccumulatorElement > layout.chunk / 8) {
    *obstacle = "OMNIHVD_BLOCK_SIZE is larger than " +
                std::to_string(layout.chunk / 8 / kAccumulatorElement);
    return nullptr;
  }
  auto segment = Segment::create(exchange, round_up(layout.common, 4096),
                                 round_up(layout.each, 4096), obstacle);
  if (!segment) return nullptr;
  const bool core_each = has_core_each(exchange);
  return std::unique_ptr<SharedSum>(
      new SharedSum(std::move(segment), exchange, agreed, host, std::move(numbers), core_each));
}

SharedSum::SharedSum(std::unique_ptr<Segment> segment, Exchange& exchange, const Settings& settings,
                     const std::string& host, std::vector<int> numbers, bool core_each)
    : segment_(std::move(segment)),
      layout_(settings.block_size, exchange.size()),
      control_(*reinterpret_cast<SharedControl*>(segment_->common())),
      rank_(exchange.rank()),
      ranks_(exchange.size()),
      settings_(settings),
      peers_(*segment_, control_.failure, rank_, ranks_, settings, host, std::move(numbers)),
      spin_(core_each ? settings.spin_us : 0),
      accumulator_(settings.block_size * kAccumulatorElement) {}

SharedSum::~SharedSum() {
  if (process_.is_this()) of(rank_).left = 1;
}

SharedRank& SharedSum::of(int rank) const {
  return *reinterpret_cast<SharedRank*>(segment_->of(rank));
}

uint8_t* SharedSum::flags(int rank, uint64_t chunk) const {
  return segment_->of(rank) + layout_.flags + chunk % kBuffers * layout_.blocks;
}

uint16_t* SharedSum::holders(uint64_t chunk) const {
  return reinterpret_cast<uint16_t*>(segment_->common() + sizeof(SharedControl)) +
         chunk % kBuffers * layout_.blocks;
}

uint8_t* SharedSum::data(int rank, uint64_t chunk) const {
  return segment_->of(rank) + layout_.data + chunk % kBuffers * layout_.chunk;
}

// A rank gives chunk k before it takes the sums of k - 1, so that a rank that is ahead finds work.
// Chunk k reuses the buffer of k - 3: all ranks took those sums before they added k - 2.
uint64_t SharedSum::allreduce(const void* in, void* out, uint64_t count, DType dtype,
                              const Codec& codec) {
  return run(Sum(in, out, count, dtype, codec), true);
}

uint64_t SharedSum::reduce_scatter(const void* in, void* out, uint64_t count, DType dtype,
                                   const Codec& codec, Blocks part, uint8_t* has) {
  Sum sum(in, out, count, dtype, codec);
  sum.whole = false;
  sum.taken = part;
  sum.noted = has;
  sum.scattered = has == nullptr;
  return run(sum, true);
}

uint64_t SharedSum::allgather(void* out, uint64_t count, DType dtype, Blocks part,
                              const uint8_t* has, bool fill) {
  Sum sum(out, out, count, dtype, {});
  sum.given = part;
  sum.known = has;
  sum.fill = fill;
  return run(sum, false);
}

uint64_t SharedSum::run(const Sum& sum, bool count) {
  peers_.throw_if_failed();
  const size_t block_bytes = settings_.block_size * sum.element;
  if (count) {  // an allgather ends the sum that its reduce-scatter began
    peers_.begin();
    stats().calls += 1;
    stats().bytes_in += sum.bytes();
    stats().ring_bytes += ring_bytes(uint64_t(ranks_), sum.bytes(), sum.scattered);
  }
  SharedRank& mine = of(rank_);
  mine.count = sum.count;
  mine.dtype = uint32_t(sum.dtype);
  mine.scatters = sum.scattered;
  mine.codec = sum.codec;

  const size_t step = layout_.chunk / block_bytes * block_bytes;
  uint64_t blocks = 0, nonzero = 0, united = 0;
  Chunk last{};
  for (uint64_t at = 0; at < sum.bytes(); at += step) {
    const Chunk chunk{next_chunk_++, at, std::min<uint64_t>(step, sum.bytes() - at), block_bytes};
    blocks += chunk.blocks();
    nonzero += give(sum, chunk);
    announce(given);
    if (at > 0) {
      wait(added, last.number);
      united += take(sum, last);
    }
    wait(given, chunk.number);
    if (at == 0) check_same();
    add(sum, chunk);
    mine.would_send = would_send_;
    announce(added);
    last = chunk;
  }
  if (sum.bytes() > 0) {
    wait(added, last.number);
    if (count && !sum.noted) count_between_hosts();
    united += take(sum, last);
  }
  if (count) {
    stats().blocks += blocks;
    stats().nonzero_blocks += nonzero;
    stats().result_blocks += united;
  }
  return united;
}

// Codes a block as the engine would to send it, `receivers` times. A packed block stays exact; a
// sum is packed only if all its contributions were.
SharedSum::Form SharedSum::code(const Sum& sum, Coding coding, uint32_t who, uint64_t number,
                                bool may_pack, const uint8_t* block, size_t bytes, uint8_t* out,
                                uint64_t receivers) {
  const BlockCoder coder(sum.codec, coding, who, sum.dtype);
  const size_t n = bytes / sum.element;
  const bool packed = may_pack && coder.packs(n, sum.ops.count_nonzero(block, n));
  uint8_t* const made = accumulator_.data();
  const size_t made_bytes =
      packed ? sum.ops.pack(block, n, made) : coder.encode(number, block, n, made);
  if (packed)
    sum.ops.unpack(made, n, out);  // this turns negative zeros into zeros
  else if (made_bytes > 0)
    coder.decode(made, n, out);
  else if (out != block)
    copy(out, block, bytes);
  CodecStats& counts = stats().codecs;
  counts.blocks += receivers;
  counts.packed_blocks += receivers * packed;
  counts.plain_blocks += receivers * (made_bytes == 0);
  counts.bytes += receivers * (made_bytes > 0 ? made_bytes : bytes);
  counts.plain_bytes += receivers * bytes;
  would_send_ += receivers * (made_bytes > 0 ? made_bytes : bytes);
  return packed ? kPacked : kDense;
}

// Examines every eighth block, which stands for those that follow: whole, with a bitmap, or listed
// (its indices take about their entropy).
void SharedSum::would_send(const Sum& sum, const uint8_t* block, size_t bytes, uint64_t receivers) {
  if (weighed_++ % 8 == 0) {
    const size_t n = bytes / sum.element, nonzero = sum.ops.count_nonzero(block, n);
    packed_share_ = 1;
    if (worth_packing(n, nonzero, sum.element)) {
      const double some = std::max(double(nonzero), 1.0);
      const double listed = some * (2 + std::log2(double(n) / some)) / 8;
      const double places = std::min(listed, double(bitmap_bytes(n)));
      packed_share_ = (places + double(nonzero * sum.element)) / double(bytes);
    }
  }
  would_send_ += receivers * uint64_t(packed_share_ * double(bytes));
}

// No rank changes its would_send until all ranks have begun the next sum.
void SharedSum::count_between_hosts() {
  uint64_t fullest = 0;
  for (int rank = 0; rank < ranks_; ++rank)
    fullest = std::max<uint64_t>(fullest, of(rank).would_send);
  stats().between_hosts_bytes += fullest - counted_would_send_;
  counted_would_send_ = fullest;
}

// Copies this rank's non-zero blocks to its part, except those that it adds itself; returns how
// many are non-zero. With a codec copies all of them, as they would arrive.
uint64_t SharedSum::give(const Sum& sum, const Chunk& chunk) {
  const uint8_t* const from = sum.in + chunk.begin;
  uint8_t* const to = data(rank_, chunk.number);
  uint8_t* const has = flags(rank_, chunk.number);
  const auto [begin, end] = share(chunk);
  past_caches_ = stores_.next();
  const auto start = std::chrono::steady_clock::now();
  uint64_t nonzero = 0, copied = 0;
  for (uint32_t block = 0; block < chunk.blocks(); ++block) {
    const size_t at = block * chunk.block_bytes, bytes = chunk.bytes_of(block);
    const uint64_t number = chunk.first() + block;
    if (!sum.given.has(number) || (sum.known && !sum.known[number])) {
      has[block] = 0;
      continue;
    }
    const BlockOps::Content content = sum.ops.inspect(from + at, bytes / sum.element);
    has[block] = content.nonzero ? kDense : kNothing;
    nonzero += content.nonzero;
    if (content.nonzero) {
      const bool for_another = block < begin || block >= end;
      const bool travels = sum.scattered ? !sum.taken.has(number) : for_another;
      if (travels && !sum.codec) would_send(sum, from + at, bytes, 1);
      if (sum.codec)
        has[block] = code(sum, contribution_coding(sum.codec), peers_.number_of(rank_), number,
                          true, from + at, bytes, to + at, for_another);
      else if (for_another)
        copied += share_out(to + at, from + at, bytes);
    } else if (content.negative_zero && sum.in_place()) {
      std::memset(sum.out + chunk.begin + at, 0, bytes);
    }
  }
  if (past_caches_) finish_stores();
  if (copied > 0 && nonzero == chunk.blocks()) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    stores_.took(past_caches_, took.count() / double(copied));
  }
  stats().bytes_copied += copied;
  return nonzero;
}

// Copies to this rank's part, where other ranks read.
size_t SharedSum::share_out(uint8_t* to, const uint8_t* from, size_t bytes) const {
  if (!past_caches_) return copy(to, from, bytes);
  copy_past_caches(to, from, bytes);
  return bytes;
}

// The blocks that this rank adds: begin and end.
std::pair<uint32_t, uint32_t> SharedSum::share(const Chunk& chunk) const {
  const uint64_t blocks = chunk.blocks(), ranks = uint64_t(ranks_), rank = uint64_t(rank_);
  return {uint32_t(blocks * rank / ranks), uint32_t(blocks * (rank + 1) / ranks)};
}

// Adds this rank's share into its tensor, and for the other ranks.
void SharedSum::add(const Sum& sum, const Chunk& chunk) {
  uint16_t* const holder = holders(chunk.number);
  std::vector<const uint8_t*> has, parts;
  for (int rank = 0; rank < ranks_; ++rank) {
    has.push_back(flags(rank, chunk.number));
    const bool as_it_is = rank == rank_ && !sum.codec;
    parts.push_back(as_it_is ? sum.in + chunk.begin : data(rank, chunk.number));
  }
  uint8_t* const out = sum.out + chunk.begin;
  uint8_t* const others = data(rank_, chunk.number);
  const auto [begin, end] = share(chunk);
  uint64_t copied = 0;
  for (uint32_t block = begin; block < end; ++block) {
    const size_t at = block * chunk.block_bytes, bytes = chunk.bytes_of(block);
    const size_t n = bytes / sum.element;
    int first = 0;
    while (first < ranks_ && !has[first][block]) ++first;
    holder[block] = first < ranks_ ? uint16_t(first) : kNobody;
    const bool coded = sum.codec && first < ranks_;
    bool summed = false, packed = coded && has[first][block] == kPacked;
    for (int rank = first + 1; rank < ranks_; ++rank) {
      if (!has[rank][block]) continue;
      if (!summed) sum.ops.store(accumulator_.data(), parts[first] + at, n);
      sum.ops.add(accumulator_.data(), parts[rank] + at, n);
      summed = true;
      packed &= has[rank][block] == kPacked;
    }
    if (summed) {
      sum.ops.finish(out + at, accumulator_.data(), n);
      copied += 2 * bytes;
      holder[block] = uint16_t(rank_);
    } else if (first < ranks_) {
      if (coded || !sum.in_place() || first != rank_)
        copied += copy(out + at, parts[first] + at, bytes);
    }
    if (first < ranks_ && !sum.codec && !sum.scattered)
      would_send(sum, out + at, bytes, uint64_t(ranks_) - 1);
    if (coded) holder[block] = uint16_t(rank_);
    if (coded && sum.whole)
      code(sum, sum_coding(sum.codec), kSums, chunk.first() + block, packed, out + at, bytes,
           out + at, uint64_t(ranks_) - 1);
    if (holder[block] == rank_) copied += share_out(others + at, out + at, bytes);
  }
  if (past_caches_) finish_stores();
  stats().bytes_copied += copied;
}

// Copies the sums of the other shares to the tensor, and zeros where there is none; returns how
// many blocks in all have a sum.
uint64_t SharedSum::take(const Sum& sum, const Chunk& chunk) {
  const uint16_t* const holder = holders(chunk.number);
  uint8_t* const to = sum.out + chunk.begin;
  const auto [begin, end] = share(chunk);
  uint64_t united = 0, copied = 0;
  for (uint32_t block = 0; block < chunk.blocks(); ++block) {
    const size_t at = block * chunk.block_bytes, bytes = chunk.bytes_of(block);
    const uint64_t number = chunk.first() + block;
    const bool any = holder[block] != kNobody;
    united += any;
    if (sum.noted && any) sum.noted[number] = 1;
    if (!sum.taken.has(number)) continue;
    if (any) {
      const bool added_here = block >= begin && block < end;
      // If this rank is the holder, no other rank has anything in the block.
      if (!added_here && (holder[block] != rank_ || !sum.in_place()))
        copied += copy(to + at, data(holder[block], chunk.number) + at, bytes);
    } else if (sum.fill || (sum.known && sum.known[number])) {
      std::memset(to + at, 0, bytes);
    }
  }
  stats().bytes_copied += copied;
  return united;
}

}  // namespace omnihvd
