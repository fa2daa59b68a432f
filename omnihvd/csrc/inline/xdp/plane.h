// An aggregator in the kernel's receive path: loads aggregator.bpf.c, and attaches it to an
// interface for as long as this object, or this process, lives (a link of BPF: the kernel takes the
// program away when its last descriptor is closed, by whatever end). Needs libbpf, and so is in a
// module of its own.
#pragma once

#include <linux/bpf.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "inline/slot_aggregator.h"

struct bpf_object;
struct bpf_link;
struct bpf_map;

namespace omnihvd {

class XdpPlane final : public InlinePlane {
 public:
  struct Options {
    std::string object;     // the compiled program's file
    std::string interface;  // empty: only loaded, for run()
    std::string host;       // the interface's IPv4 address, at which contributions come
    uint16_t port = 0;
    std::string group;  // IPv4 multicast, to which results go
    uint32_t jobs = 4;
    uint16_t slots = 128;
  };
  explicit XdpPlane(const Options& options);  // throws Error
  ~XdpPlane() override;

  void set_job(size_t job, uint64_t key, uint32_t workers) override;
  uint64_t contributions(size_t job) const override;
  uint32_t round(size_t job, uint16_t slot) const override;
  std::array<uint64_t, kInlineCounts> counts() const;
  // {runs, nanoseconds} of the program, where the kernel counts (kernel.bpf_stats_enabled).
  std::pair<uint64_t, uint64_t> run_time() const;
  uint32_t verified_instructions() const;
  // The program's verdict on a frame, and the frame after it; nanoseconds of one of `repeat` runs.
  struct Run {
    uint32_t verdict, nanoseconds;
    std::string frame;
  };
  Run run(const std::string& frame, uint32_t repeat) const;

 private:
  struct Close {
    void operator()(bpf_object* object) const;
    void operator()(bpf_link* link) const;
  };
  void load();
  void attach();
  bpf_map* map(const char* name) const;
  int program() const;
  bpf_prog_info info() const;

  const Options options_;
  std::unique_ptr<bpf_object, Close> object_;
  std::unique_ptr<bpf_link, Close> link_;
};

// The IPv4 address of an interface. Throws Error: there is no such interface, it is not up, or it
// has none.
std::string interface_address(const std::string& interface);

}  // namespace omnihvd
