// As much of CUDA as the kernels use, on one thread of a CPU.
//
// Each thread of a CTA is a fibre that runs until it waits for its warp. Which one runs next is
// drawn at random, or is the first or the last that can (`Order`), so that every lane is at times
// far ahead of the others and at times far behind. CTAs run one after another, in an order drawn as
// well.
//
// What a GPU leaves undefined is an error: lanes of a warp in different collective operations, or
// lanes that end while others wait for them; and for ThreadSanitizer only __syncwarp orders the
// lanes' accesses (shuffles and votes do not order memory on a GPU either).
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fibre.h"

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};

namespace emulation {

enum class Order { random, first, last };

// Threads of a CTA, by number.
class ThreadSet {
 public:
  void add(unsigned i) { words_[i / 64] |= uint64_t(1) << i % 64; }
  void remove(unsigned i) { words_[i / 64] &= ~(uint64_t(1) << i % 64); }
  unsigned size() const {
    unsigned n = 0;
    for (const uint64_t word : words_) n += unsigned(__builtin_popcountll(word));
    return n;
  }
  unsigned nth(unsigned n) const {  // in ascending order
    for (unsigned i = 0;; ++i) {
      const auto here = unsigned(__builtin_popcountll(words_[i]));
      if (n >= here) {
        n -= here;
        continue;
      }
      uint64_t word = words_[i];
      for (; n > 0; --n) word &= word - 1;
      return 64 * i + unsigned(__builtin_ctzll(word));
    }
  }

 private:
  uint64_t words_[16] = {};  // of 1024 threads, as many as a CTA may have
};

using Values = std::array<uint64_t, 32>;  // one of each lane

// A fibre that does one job after the other: to make one takes long, for the sanitizer of races
// most, so they are kept from one CTA to the next.
struct Worker {
  std::function<void()> job;
  Fibre* back = nullptr;
  Fibre fibre{[this] {
                while (true) {
                  job();
                  fibre.switch_to(*back, true);
                }
              },
              fibre};

  static std::vector<std::unique_ptr<Worker>>& idle() {
    static auto& all = *new std::vector<std::unique_ptr<Worker>>;
    return all;
  }
};

class Cta {
 public:
  Cta(unsigned threads, const std::function<void()>& kernel, Order order, std::mt19937& random)
      : order_(order), random_(random), threads_(threads), warps_(threads / 32) {
    auto& idle = Worker::idle();
    while (idle.size() < threads) idle.push_back(std::make_unique<Worker>());
    for (Thread& thread : threads_) {
      workers_.push_back(std::move(idle.back()));
      idle.pop_back();
      workers_.back()->back = &scheduler_;
      workers_.back()->job = [&] {
        kernel();
        Unchecked unchecked;
        thread.state = State::ended;
      };
    }
  }

  void run() {
    Unchecked unchecked;
    current = this;
    for (unsigned i = 0; i < threads_.size(); ++i) ready_.add(i);
    for (size_t live = threads_.size(); live > 0;) {
      const unsigned ready = ready_.size();
      if (ready == 0) throw std::runtime_error("lanes wait for lanes that have ended");
      thread_ = ready_.nth(order_ == Order::first  ? 0
                           : order_ == Order::last ? ready - 1
                                                   : unsigned(random_() % ready));
      ready_.remove(thread_);
      const bool begins = !std::exchange(threads_[thread_].begun, true);
      scheduler_.switch_to(workers_[thread_]->fibre, begins);
      switch (threads_[thread_].state) {
        case State::ended: --live; break;
        case State::at_barrier: ++at_barrier_; break;
        case State::waiting: proceed(thread_ / 32);
      }
      if (at_barrier_ < threads_.size()) continue;
      at_barrier_ = 0;
      for (unsigned i = 0; i < threads_.size(); ++i) ready_.add(i);
    }
    for (auto& worker : workers_) Worker::idle().push_back(std::move(worker));
  }

  // Waits for all lanes of the warp; returns what each of them brought.
  Values meet(const char* operation, unsigned mask, uint64_t value) {
    Unchecked unchecked;
    const unsigned self = thread_;
    Thread& thread = threads_[self];
    // Two sets of values: a lane may be in the next operation before another has left this one.
    Values& values = warps_[self / 32].values[thread.operations++ % 2];
    values[self % 32] = value;
    thread.operation = mask == 0xffffffffu ? operation : "an operation of a part of the warp";
    thread.state = State::waiting;
    workers_[self]->fibre.switch_to(scheduler_, false);
    return values;
  }

  // Waits for all threads of the CTA.
  void meet_all() {
    Unchecked unchecked;
    const unsigned self = thread_;
    threads_[self].state = State::at_barrier;
    workers_[self]->fibre.switch_to(scheduler_, false);
  }

  unsigned thread() const {
    Unchecked unchecked;
    return thread_;
  }
  void* barrier() { return &warps_[thread() / 32]; }
  static inline Cta* current = nullptr;

 private:
  enum class State { waiting, at_barrier, ended };  // of those that are not ready
  struct Thread {
    State state = State::ended;
    bool begun = false;
    const char* operation = nullptr;
    unsigned operations = 0;
  };
  struct Warp {
    Values values[2];
    unsigned waiting = 0;
  };

  // Lets the lanes of a warp go on once all have come.
  void proceed(unsigned warp) {
    if (++warps_[warp].waiting < 32) return;
    warps_[warp].waiting = 0;
    const Thread* const lanes = &threads_[warp * 32];
    for (unsigned i = 0; i < 32; ++i) {
      if (lanes[i].operation != lanes[0].operation &&
          std::strcmp(lanes[i].operation, lanes[0].operation) != 0)
        throw std::runtime_error(std::string("lanes of a warp meet in ") + lanes[0].operation +
                                 " and " + lanes[i].operation);
      ready_.add(warp * 32 + i);
    }
  }

  const Order order_;
  std::mt19937& random_;
  Fibre scheduler_;
  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Warp> warps_;
  ThreadSet ready_;
  unsigned thread_ = 0;
  size_t at_barrier_ = 0;
};

struct ThreadIndex {
  struct {
    operator unsigned() const { return Cta::current->thread(); }
  } x;
};
struct BlockIndex {
  unsigned x;
};

}  // namespace emulation

inline emulation::ThreadIndex threadIdx;
inline emulation::BlockIndex blockIdx, gridDim;

namespace emulation {

inline void launch(uint64_t grid, unsigned threads, unsigned seed,
                   const std::function<void()>& kernel) {
  std::mt19937 random(seed);
  std::vector<unsigned> ctas(grid);
  std::iota(ctas.begin(), ctas.end(), 0u);
  std::shuffle(ctas.begin(), ctas.end(), random);
  gridDim.x = unsigned(grid);
  for (unsigned cta : ctas) {
    blockIdx.x = cta;
    Cta(threads, kernel, Order(seed % 3), random).run();
  }
}

inline Values meet(const char* operation, unsigned mask, uint64_t value) {
  return Cta::current->meet(operation, mask, value);
}
inline unsigned lane() { return Cta::current->thread() % 32; }

}  // namespace emulation

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  void* barrier = emulation::Cta::current->barrier();
  emulation::release(barrier);
  emulation::meet("__syncwarp", mask, 0);
  emulation::acquire(barrier);
}
inline void __syncthreads() {
  void* barrier = emulation::Cta::current;
  emulation::release(barrier);
  emulation::Cta::current->meet_all();
  emulation::acquire(barrier);
}
inline unsigned __ballot_sync(unsigned mask, bool value) {
  const emulation::Values values = emulation::meet("__ballot_sync", mask, value);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= unsigned(values[lane] != 0) << lane;
  return bits;
}
inline bool __any_sync(unsigned mask, bool value) {
  const emulation::Values values = emulation::meet("__any_sync", mask, value);
  return std::any_of(values.begin(), values.end(), [](uint64_t v) { return v != 0; });
}
inline unsigned __match_any_sync(unsigned mask, unsigned value) {
  const emulation::Values values = emulation::meet("__match_any_sync", mask, value);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= unsigned(values[lane] == value) << lane;
  return bits;
}
template <class T>
T __shfl_sync(unsigned mask, T value, unsigned lane) {
  return T(emulation::meet("__shfl_sync", mask, value)[lane % 32]);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  const emulation::Values values = emulation::meet("__shfl_up_sync", mask, value);
  return emulation::lane() >= by ? T(values[emulation::lane() - by]) : value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned with) {
  return T(emulation::meet("__shfl_xor_sync", mask, value)[emulation::lane() ^ with]);
}

// Where there is a double of CUDA's driver, it hears that a kernel waits.
inline void __nanosleep(unsigned ns) {
  static const auto give_way = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "double_give_way"));
  if (give_way != nullptr) give_way();
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}
inline void __threadfence_system() {
#if defined(__SANITIZE_THREAD__)  // it knows no fences; operations on one variable order as much
  static std::atomic<unsigned> fences{0};
  fences.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

inline void __threadfence() { __threadfence_system(); }

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline uint4 __ldcs(const uint4* from) { return *from; }
template <class To, class From>
To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
inline long long __double_as_longlong(double value) { return same_bits<long long>(value); }
// Rounded, each by itself: without FMA, as this is compiled, there is nothing else.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
template <class T>
T atomicAdd(T* at, T value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
inline unsigned atomicOr(unsigned* at, unsigned value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
