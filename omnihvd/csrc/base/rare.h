// Places that ask a simulation whether to take a path that is rarely taken, as FoundationDB's
// BUGGIFY does. Where nobody simulates the answer is no, for the price of a look at a pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace omnihvd {

enum class Rare : uint8_t {
  short_window,  // an aggregator sums fewer blocks at a time than there is room for
  short_look,    // a worker names fewer blocks ahead than it might
  short_words,   // an aggregator below others says fewer blocks ahead than a frame holds
  no_memory,     // there is none
};
constexpr size_t kRares = 4;

class RarePaths {
 public:
  virtual ~RarePaths() = default;
  virtual bool takes(Rare path) = 0;

  // While it lives, these are asked on this thread.
  class Asked {
   public:
    explicit Asked(RarePaths* paths) : before_(std::exchange(asked_, paths)) {}
    Asked(const Asked&) = delete;
    ~Asked() { asked_ = before_; }

   private:
    RarePaths* const before_;
  };

 private:
  friend bool rarely(Rare path);
  static inline thread_local RarePaths* asked_ = nullptr;
};

inline bool rarely(Rare path) { return RarePaths::asked_ && RarePaths::asked_->takes(path); }

// Before memory is allocated that grows with tensors or messages. Throws std::bad_alloc, as the
// allocation may.
inline void ask_for_memory() {
  if (rarely(Rare::no_memory)) throw std::bad_alloc();
}

}  // namespace omnihvd
