// How a rank writes what other ranks read.
//
// A write to a line that another core has read waits for that core. If the two cores share a cache,
// that is fast, and the reader finds the line there. If they do not (other dies, other nodes of
// NUMA), stores past the caches are faster, and the reader fetches the line from memory. Zen 4,
// blocks of 1 KiB, GB/s: 8.6 to write and 40 to read within a die, 2.1 and 18 across; past the
// caches 5.6 and 17 everywhere.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace omnihvd {

// Call finish_stores() before other ranks may read.
inline void copy_past_caches(uint8_t* to, const uint8_t* from, size_t bytes) {
#ifdef __x86_64__
  constexpr size_t kEach = sizeof(__m128i);
  if (reinterpret_cast<uintptr_t>(to) % kEach == 0)
    for (; bytes >= kEach; bytes -= kEach, to += kEach, from += kEach)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
  std::memcpy(to, from, bytes);
}

inline void finish_stores() {
#ifdef __x86_64__
  _mm_sfence();  // these stores are not ordered by a release
#endif
}

// Which stores are faster where the operating system has put the ranks: it may move them. Pure.
class Stores {
 public:
  // Whether the stores of the next chunk go past the caches.
  bool next() { return past_ != (chunks_++ % kTryOther == 1); }

  // seconds: a byte, by such stores, of a chunk that was copied as a whole.
  void took(bool past, double seconds) {
    Latest& latest = latest_[past];
    latest[next_[past]++ % latest.size()] = seconds;
    const double within = median(latest_[false]), beyond = median(latest_[true]);
    if (within > 0 && beyond > 0) past_ = within > (past_ ? kWorth / 2 : kWorth) * beyond;
  }

 private:
  using Latest = std::array<double, 3>;
  static constexpr uint64_t kTryOther = 63;  // odd: the sums of a step may be a power of two
  // Stores within the caches must take so many times as long, since readers gain by them. Half of
  // that is enough to go on past the caches.
  static constexpr double kWorth = 2.5;

  // The median of three leaves out a chunk in which the rank lost its core.
  static double median(Latest of) {
    std::sort(of.begin(), of.end());
    return of[1];
  }

  bool past_ = false;
  uint64_t chunks_ = 0;
  std::array<Latest, 2> latest_{};
  std::array<size_t, 2> next_{};
};

// Copies by the faster stores, and times them.
inline void copy_timed(Stores& stores, uint8_t* to, const uint8_t* from, size_t bytes) {
  const bool past = stores.next();
  const auto start = std::chrono::steady_clock::now();
  if (past) {
    copy_past_caches(to, from, bytes);
    finish_stores();
  } else {
    std::memcpy(to, from, bytes);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  stores.took(past, took.count() / double(bytes));
}

}  // namespace omnihvd
