// An aggregator in the kernel's receive path: loads aggregator.bpf.c onto an interface and tells it
// of jobs.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "innetwork/slot_aggregator.h"
#include "innetwork/xdp/program.h"

struct inline_xdp_job;

namespace omnihvd {

class XdpPlane final : public InlinePlane {
 public:
  struct Options {
    std::string object;     // the compiled program's file
    std::string interface;  // empty: loads it only, for run()
    std::string host;       // the interface's IPv4 address, where contributions arrive
    uint16_t port = 0;
    std::string group;  // IPv4 multicast address for results
    uint32_t jobs = 16;
    uint16_t slots = 128;
  };
  explicit XdpPlane(const Options& options);  // throws Error

  void set_job(size_t job, uint64_t key, uint32_t workers, uint8_t numbers) override;
  bool adds(uint8_t numbers) const override {
    return numbers == INLINE_INT32 || numbers == INLINE_FPISA || numbers == INLINE_FPISA_A;
  }
  uint64_t contributions(size_t job) const override;
  Round round(size_t job, uint16_t slot) const override;
  std::array<uint64_t, kInlineCounts> counts() const;
  const XdpProgram& program() const { return program_; }
  // The program's verdict on a frame, the frame after it, and nanoseconds per run over `repeat`
  // runs.
  struct Run {
    uint32_t verdict, nanoseconds;
    std::string frame;
  };
  Run run(const std::string& frame, uint32_t repeat) const;

 private:
  inline_xdp_job entry_of(size_t job) const;

  const Options options_;
  XdpProgram program_;
};

}  // namespace omnihvd
