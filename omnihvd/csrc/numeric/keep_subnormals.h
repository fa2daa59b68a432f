// Keeps subnormal numbers while it lives. A caller's thread may flush them to zero: ranks that add
// in their callers' threads would get different sums.
#pragma once

#include <cstdint>

namespace omnihvd {

class KeepSubnormals {
 public:
  KeepSubnormals() { set(saved_ & ~kFlush); }
  ~KeepSubnormals() { set(saved_); }
  KeepSubnormals(const KeepSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kFlush = 0x8040;  // results and operands, in MXCSR
  static void set(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
  const unsigned saved_ = __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;  // both, in FPCR
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
  static uint64_t mode() {
    uint64_t now;
    asm volatile("mrs %0, fpcr" : "=r"(now));
    return now;
  }
  const uint64_t saved_ = mode();
#endif
};

}  // namespace omnihvd
