#include "shared/shared_sum.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "protocol/block_ops.h"
#include "session/stats.h"

namespace omnihvd {
namespace {

constexpr uint16_t kNobody = 0xFFFF;
constexpr auto kLookAfter = std::chrono::milliseconds(100);  // to see who has ended
constexpr size_t kAccumulatorElement = 8;                    // bytes, at most

size_t pages(size_t bytes) { return round_up(bytes, 4096); }

bool has_core_each(int ranks) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= ranks;
}

size_t copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return bytes;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct SharedSum::Sum {
  Sum(const void* from, void* to, uint64_t elements, DType type, const Codec& by)
      : in(static_cast<const uint8_t*>(from)),
        out(static_cast<uint8_t*>(to)),
        count(elements),
        dtype(type),
        codec(by),
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

  Blocks given, taken;             // of this rank's tensor
  uint8_t* noted = nullptr;        // [block] set where anybody has something
  const uint8_t* known = nullptr;  // [block] where there may be something
  bool fill = in != out;           // writes zeros where nobody has anything
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
  auto segment = Segment::create(exchange, pages(layout.common), pages(layout.each), obstacle);
  if (!segment) return nullptr;
  return std::unique_ptr<SharedSum>(new SharedSum(
      std::move(segment), exchange.rank(), exchange.size(), agreed, host, std::move(numbers)));
}

SharedSum::SharedSum(std::unique_ptr<Segment> segment, int rank, int ranks,
                     const Settings& settings, const std::string& host, std::vector<int> numbers)
    : segment_(std::move(segment)),
      layout_(settings.block_size, ranks),
      control_(*reinterpret_cast<SharedControl*>(segment_->common())),
      rank_(rank),
      ranks_(ranks),
      settings_(settings),
      host_(host),
      numbers_(std::move(numbers)),
      spin_(has_core_each(ranks) ? settings.spin_us : 0),
      accumulator_(settings.block_size * kAccumulatorElement) {}

SharedSum::~SharedSum() {
  of(rank_).left = 1;
  for (Gate& gate : control_.gates) gate.wake();
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

std::string SharedSum::name_of(int rank) const {
  const int number = numbers_.empty() ? rank : numbers_[size_t(rank)];
  return "rank " + std::to_string(number) + " (" + host_ + ")";
}

// Chunk k is given before the sums of k - 1 are taken, so that a rank that is ahead finds work. It
// goes where k - 3 was, whose sums all had taken before they added k - 2.
uint64_t SharedSum::allreduce(const void* in, void* out, uint64_t count, DType dtype,
                              const Codec& codec) {
  return run(Sum(in, out, count, dtype, codec), true);
}

uint64_t SharedSum::reduce_scatter(const void* in, void* out, uint64_t count, DType dtype,
                                   const Codec& codec, Blocks part, uint8_t* has) {
  Sum sum(in, out, count, dtype, codec);
  sum.taken = part;
  sum.noted = has;
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
  throw_if_failed();
  const size_t block_bytes = settings_.block_size * sum.element;
  const auto begun = Clock::now();
  if (count) {
    stats().calls += 1;
    stats().bytes_in += sum.bytes();
    stats().ring_bytes += ring_bytes(uint64_t(ranks_), sum.bytes());
  }
  SharedRank& mine = of(rank_);
  mine.count = sum.count;
  mine.dtype = uint32_t(sum.dtype);
  mine.codec = sum.codec;

  const size_t step = layout_.chunk / block_bytes * block_bytes;
  const auto chunk_at = [&](uint64_t at, uint64_t number) {
    return Chunk{number, at, std::min<uint64_t>(step, sum.bytes() - at), block_bytes};
  };
  uint64_t blocks = 0, nonzero = 0, united = 0;
  Chunk last{};
  for (uint64_t at = 0; at < sum.bytes(); at += step) {
    const Chunk chunk = chunk_at(at, next_chunk_++);
    blocks += chunk.blocks();
    nonzero += give(sum, chunk);
    announce(given, chunk.number);
    if (at > 0) {
      wait(added, last.number, sum);
      united += take(sum, last);
    }
    wait(given, chunk.number, sum);
    if (at == 0) check_same(sum);
    add(sum, chunk);
    announce(added, chunk.number);
    last = chunk;
  }
  if (sum.bytes() > 0) {
    wait(added, last.number, sum);
    united += take(sum, last);
  }
  if (count) {
    stats().blocks += blocks;
    stats().nonzero_blocks += nonzero;
    stats().result_blocks += united;
  }
  stats().nanoseconds +=
      uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count());
  return united;
}

// Copies this rank's non-zero blocks to its part, but for those that it adds itself; returns how
// many are non-zero.
uint64_t SharedSum::give(const Sum& sum, const Chunk& chunk) {
  const uint8_t* const from = sum.in + chunk.begin;
  uint8_t* const to = data(rank_, chunk.number);
  uint8_t* const has = flags(rank_, chunk.number);
  const auto [begin, end] = share(chunk);
  uint64_t nonzero = 0, copied = 0;
  for (uint32_t block = 0; block < chunk.blocks(); ++block) {
    const size_t at = block * chunk.block_bytes, bytes = chunk.bytes_of(block);
    const uint64_t number = chunk.first() + block;
    if (!sum.given.has(number) || (sum.known && !sum.known[number])) {
      has[block] = 0;
      continue;
    }
    const BlockOps::Content content = sum.ops.inspect(from + at, bytes / sum.element);
    has[block] = content.nonzero;
    nonzero += content.nonzero;
    if (content.nonzero) {
      if (block < begin || block >= end) copied += copy(to + at, from + at, bytes);
    } else if (content.negative_zero && sum.in_place()) {
      std::memset(sum.out + chunk.begin + at, 0, bytes);
    }
  }
  stats().bytes_copied += copied;
  return nonzero;
}

// The blocks that this rank adds: from, up to.
std::pair<uint32_t, uint32_t> SharedSum::share(const Chunk& chunk) const {
  const uint64_t blocks = chunk.blocks(), ranks = uint64_t(ranks_), rank = uint64_t(rank_);
  return {uint32_t(blocks * rank / ranks), uint32_t(blocks * (rank + 1) / ranks)};
}

// To this rank's tensor, and for the others.
void SharedSum::add(const Sum& sum, const Chunk& chunk) {
  uint16_t* const holder = holders(chunk.number);
  std::vector<const uint8_t*> has, parts;
  for (int rank = 0; rank < ranks_; ++rank) {
    has.push_back(flags(rank, chunk.number));
    parts.push_back(rank == rank_ ? sum.in + chunk.begin : data(rank, chunk.number));
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
    bool summed = false;
    for (int rank = first + 1; rank < ranks_; ++rank) {
      if (!has[rank][block]) continue;
      if (!summed) sum.ops.store(accumulator_.data(), parts[first] + at, n);
      sum.ops.add(accumulator_.data(), parts[rank] + at, n);
      summed = true;
    }
    if (summed) {
      sum.ops.finish(out + at, accumulator_.data(), n);
      copied += 2 * bytes;
      holder[block] = uint16_t(rank_);
    } else if (first < ranks_) {
      if (!sum.in_place() || first != rank_) copied += copy(out + at, parts[first] + at, bytes);
    }
    if (holder[block] == rank_) copied += copy(others + at, out + at, bytes);
  }
  stats().bytes_copied += copied;
}

// Copies the sums of the others' shares to the tensor, and zeros where there is none; returns how
// many blocks of all have one.
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
      // Of what this rank holds nobody else has anything.
      if (!added_here && (holder[block] != rank_ || !sum.in_place()))
        copied += copy(to + at, data(holder[block], chunk.number) + at, bytes);
    } else if (sum.fill || (sum.known && sum.known[number])) {
      std::memset(to + at, 0, bytes);
    }
  }
  stats().bytes_copied += copied;
  return united;
}

void SharedSum::announce(Step step, uint64_t chunk) {
  control_.gates[step].arrive(uint32_t(ranks_));
  of(rank_).steps = 2 * chunk + step + 1;
}

void SharedSum::wait(Step step, uint64_t chunk, const Sum& sum) {
  Gate& gate = control_.gates[step];
  const uint32_t times = uint32_t(chunk + 1);
  if (gate.open(times)) return;
  const auto begun = Clock::now();
  while (spin_.count() > 0 && Clock::now() - begun < spin_) {
    if (gate.open(times)) return;
    pause();
  }
  bool warned = false;
  while (!gate.open(times)) {
    gate.wait(times, kLookAfter);
    if (!gate.open(times)) look_after_others(step, chunk, sum, Clock::now() - begun, &warned);
  }
}

// While this rank waits: somebody may have failed, left or ended, or be late.
void SharedSum::look_after_others(Step step, uint64_t chunk, const Sum& sum, Clock::duration waited,
                                  bool* warned) {
  throw_if_failed();
  std::string late;
  for (int rank = 0; rank < ranks_; ++rank) {
    // Read before the steps: who has left did all that it did before.
    const bool left = of(rank).left != 0, ended = rank != rank_ && segment_->has_ended(rank);
    if (of(rank).steps > 2 * chunk + step) continue;
    if (left) fail(name_of(rank) + " left the job while the others wait for its part of a sum");
    if (ended) fail(name_of(rank) + " has ended");
    late += (late.empty() ? "" : ", ") + name_of(rank);
  }
  const double seconds = std::chrono::duration<double>(waited).count();
  std::ostringstream what;
  what << "an allreduce of " << sum.count << ' ' << omnihvd::name_of(sum.dtype);
  if (settings_.timeout_s > 0 && seconds > settings_.timeout_s) {
    what << " did not end within " << settings_.timeout_s << " s (OMNIHVD_TIMEOUT); waiting for "
         << late;
    fail(what.str());
  }
  if (*warned || settings_.stall_warning_s <= 0 || seconds < settings_.stall_warning_s) return;
  *warned = true;
  log(LogLevel::warning, what.str(), " has made no progress for ", settings_.stall_warning_s,
      " s; waiting for ", late);
}

void SharedSum::check_same(const Sum& sum) {
  for (int rank = 0; rank < ranks_; ++rank) {
    const SharedRank& other = of(rank);
    if (other.count == sum.count && other.dtype == uint32_t(sum.dtype) && other.codec == sum.codec)
      continue;
    fail("the ranks disagree about an allreduce: " + name_of(rank) + " sums " +
         sum_text(other.count, DType(other.dtype), other.codec) + ", " + name_of(rank_) + " sums " +
         sum_text(sum.count, sum.dtype, sum.codec) + disagreement(other.codec, sum.codec));
  }
}

void SharedSum::abort(const std::string& why) noexcept {
  uint32_t expected = 0;
  if (control_.failed.compare_exchange_strong(expected, 1)) {
    std::strncpy(control_.why, why.c_str(), sizeof control_.why - 1);
    control_.failed = 2;
  }
  for (Gate& gate : control_.gates) gate.wake();
}

void SharedSum::fail(const std::string& why) {
  abort(why);
  stats().failures += 1;
  throw Error(why);
}

void SharedSum::throw_if_failed() const {
  if (control_.failed.load() < 2) return;
  stats().failures += 1;
  throw Error(control_.why);
}

}  // namespace omnihvd
