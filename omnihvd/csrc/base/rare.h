// Fault injection: the code asks a simulation whether to take a rare path, like FoundationDB's
// BUGGIFY. Outside a simulation the answer is no, at the cost of reading one pointer.
#pragma once

#include <cstdint>
#include <new>
#include <utility>

namespace omnihvd {

enum class Rare : uint8_t {
  short_window,  // an aggregator sums fewer blocks per window than fit
  short_look,    // a worker names fewer blocks ahead than it could
  short_words,   // a child aggregator names fewer blocks ahead than a frame holds
  short_refer,   // a message refers to bytes that are cheaper to copy
  no_memory,     // an allocation fails
};

class RarePaths {
 public:
  virtual ~RarePaths() = default;
  virtual bool takes(Rare path) = 0;

  // While it lives, code on this thread asks it.
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

// Call before an allocation that grows with tensors or messages. Throws std::bad_alloc, as the
// allocation itself may.
inline void ask_for_memory() {
  if (rarely(Rare::no_memory)) throw std::bad_alloc();
}

}  // namespace omnihvd
