#include "innetwork/xdp/plane.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "innetwork/xdp/aggregator_maps.h"
#include "innetwork/xdp/device.h"

namespace omnihvd {

static_assert(INLINE_XDP_COUNTS == int(kInlineCounts));
static_assert(int(InlineCount::duplicate) == INLINE_XDP_DUPLICATE);
static_assert(int(InlineCount::stranger) == INLINE_XDP_STRANGER);

XdpPlane::XdpPlane(const Options& options)
    : options_(options), program_(options.object, "aggregate") {
  const inline_xdp_constants own{place_of(options.host, options.port), options.slots};
  program_.set_constants(&own, sizeof own);
  program_.set_entries("jobs", options.jobs);
  program_.set_entries("slots", options.jobs * options.slots);
  program_.load();
  if (!options.interface.empty()) program_.attach(options.interface);
}

void XdpPlane::set_job(size_t job, uint64_t key, uint32_t workers, uint8_t numbers) {
  inline_xdp_job entry{};
  const uint32_t index = uint32_t(job);
  const auto put = [&](const char* map, uint32_t at, const void* value) {
    if (bpf_map_update_elem(program_.map(map), &at, value, BPF_ANY) != 0)
      throw Error(std::string("cannot add a job to the XDP program: ") + why(errno));
  };
  put("jobs", index, &entry);
  if (workers == 0) return;
  // A program that has seen the old job is done with its datagram by then.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto fresh = std::make_unique<inline_xdp_slot>();
  slot_reset(&fresh->state, workers);
  for (uint32_t i = 0; i < options_.slots; ++i)
    put("slots", index * options_.slots + i, fresh.get());
  entry.key = key;
  entry.workers = workers;
  entry.numbers = numbers;
  entry.group = group_place(options_.group, options_.port);
  put("jobs", index, &entry);
}

inline_xdp_job XdpPlane::entry_of(size_t job) const {
  const uint32_t index = uint32_t(job);
  inline_xdp_job entry{};
  bpf_map_lookup_elem(program_.map("jobs"), &index, &entry);
  return entry;
}

uint64_t XdpPlane::contributions(size_t job) const { return entry_of(job).contributions; }

InlinePlane::Round XdpPlane::round(size_t job, uint16_t slot) const {
  const uint32_t index = uint32_t(job) * options_.slots + slot;
  const auto entry = std::make_unique<inline_xdp_slot>();
  bpf_map_lookup_elem(program_.map("slots"), &index, entry.get());
  return {entry->state.round, slot_missing(&entry->state, entry_of(job).workers)};
}

std::array<uint64_t, kInlineCounts> XdpPlane::counts() const {
  std::array<uint64_t, kInlineCounts> sums{};
  std::vector<uint64_t> each(static_cast<size_t>(libbpf_num_possible_cpus()));
  for (uint32_t i = 0; i < kInlineCounts; ++i)
    if (bpf_map_lookup_elem(program_.map("counts"), &i, each.data()) == 0)
      for (const uint64_t count : each) sums[i] += count;
  return sums;
}

XdpPlane::Run XdpPlane::run(const std::string& frame, uint32_t repeat) const {
  std::string out(4096, '\0');
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.data_in = frame.data();
  options.data_size_in = uint32_t(frame.size());
  options.data_out = out.data();
  options.data_size_out = uint32_t(out.size());
  options.repeat = int(repeat);
  if (const int error = bpf_prog_test_run_opts(program_.fd(), &options))
    throw Error("the kernel cannot run the XDP program: " + why(-error));
  return {options.retval, options.duration, out.substr(0, options.data_size_out)};
}

}  // namespace omnihvd
