// An XDP program: loads it from the file that clang compiled, and attaches it to an interface for
// as long as this object or this process lives. (It is a BPF link: when its last descriptor is
// closed, however that happens, the kernel detaches the program.) Needs libbpf, and is therefore in
// a module of its own.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

struct bpf_link;
struct bpf_map;
struct bpf_object;

namespace omnihvd {

class XdpProgram {
 public:
  // file: the compiled program. Throws Error.
  XdpProgram(const std::string& file, const std::string& function);
  ~XdpProgram();

  // Before load(): sets its constants, and how many entries a map has.
  void set_constants(const void* constants, size_t size);
  void set_entries(const char* map, uint32_t entries);
  void load();                                // throws Error
  void attach(const std::string& interface);  // throws Error
  int map(const char* name) const;            // the map's descriptor
  int fd() const;
  // {runs, nanoseconds}, if the kernel counts them (kernel.bpf_stats_enabled).
  std::pair<uint64_t, uint64_t> run_time() const {
    const bpf_prog_info found = info();
    return {found.run_cnt, found.run_time_ns};
  }
  uint32_t verified_instructions() const { return info().verified_insns; }

 private:
  struct Close {
    void operator()(bpf_object* object) const;
    void operator()(bpf_link* link) const;
  };
  bpf_map* find(const char* map) const;
  bpf_prog_info info() const;

  const std::string function_;
  std::unique_ptr<bpf_object, Close> object_;
  std::unique_ptr<bpf_link, Close> link_;
};

}  // namespace omnihvd
