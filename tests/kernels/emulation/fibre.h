// Fibres: threads. One of them runs at a time, until it gives way.
//
// To ThreadSanitizer (-fsanitize=thread) they are threads that run at once, and a switch orders
// nothing unless it says so.
#pragma once

#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
#endif

namespace emulation {

class Fibre {
 public:
  // The caller's own.
  Fibre() {
#ifdef __SANITIZE_THREAD__
    tsan_ = __tsan_get_current_fiber();
#endif
  }
  // Runs `body` when switched to, and then `back`.
  Fibre(std::function<void()> body, Fibre& back)
      : stack_(new char[kStack]), body_(std::move(body)), back_(&back) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStack;
    context_.uc_link = nullptr;
    makecontext(&context_, &Fibre::start, 0);
#ifdef __SANITIZE_THREAD__
    tsan_ = __tsan_create_fiber(0);
#endif
  }
  Fibre(const Fibre&) = delete;
  ~Fibre() {
#ifdef __SANITIZE_THREAD__
    if (stack_) __tsan_destroy_fiber(tsan_);
#endif
  }

  // The sanitizers know nothing of what happens here, as they would take it for leaving frames.
  __attribute__((noinline, no_sanitize("address"))) void switch_to(Fibre& next, bool ordered) {
    running_.store(&next, std::memory_order_relaxed);
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(next.tsan_, ordered ? 0 : __tsan_switch_to_fiber_no_sync);
#else
    (void)ordered;
#endif
#ifdef __SANITIZE_THREAD__  // which would take place_ for shared data
    swapcontext(&context_, &next.context_);
#else
    begun_ = true;
    if (__builtin_setjmp(place_) == 0) next.resume();
#endif
  }

 private:
  static constexpr size_t kStack = 64 << 10;
  static inline std::atomic<Fibre*> running_ = nullptr;

  static void start() {
    Fibre* self = running_.load(std::memory_order_relaxed);
    self->body_();
    self->switch_to(*self->back_, true);
  }

  // swapcontext() would call the system at each switch.
  __attribute__((noinline, no_sanitize("address"))) void resume() {
    if (begun_) __builtin_longjmp(place_, 1);
    setcontext(&context_);
  }

  ucontext_t context_;
  void* place_[5];
  bool begun_ = false;
  std::unique_ptr<char[]> stack_;
  std::function<void()> body_;
  Fibre* back_ = nullptr;
  void* tsan_ = nullptr;
};

// Accesses before `release` are ordered before accesses after `acquire`.
inline void release(void* barrier) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(barrier);
#endif
  (void)barrier;
}
inline void acquire(void* barrier) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(barrier);
#endif
  (void)barrier;
}

// While it lives, this fibre's accesses are not checked for races: they are the emulation's own.
struct Unchecked {
#ifdef __SANITIZE_THREAD__
  Unchecked() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unchecked() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  ~Unchecked() {}
#endif
};

}  // namespace emulation
