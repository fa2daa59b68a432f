#include "shims/nccl/gpu_choice.h"

#include <algorithm>

namespace omnihvd {
namespace {

// Guesses, to be measured.
constexpr double kUnion_s = 150e-6;        // two hand-overs to the host, an allgather, kernels
constexpr double kStream_s = 300e-6;       // the same, and messages
constexpr double kDeviceBytes_s = 1.5e12;  // memory of the device
constexpr double kPcieBytes_s = 12e9;      // each way
constexpr double kEngineBytes_s = 2.5e9;   // what an engine thread moves, each way
constexpr double kBetter = 0.9;            // less than this share of NCCL's time is worth a change
constexpr double kNearlyAll = 0.9;
constexpr size_t kRemembered = 4096;

}  // namespace

WaySeconds estimate(const SumSeen& sum, const Network& network) {
  const auto bytes = static_cast<double>(sum.bytes);
  const double united = bytes * sum.united, own = bytes * sum.own, n = network.ranks;
  const double ring = 2 * (n - 1) / n;  // bytes that NCCL's ring moves for each
  const double link = std::min(ring / network.seconds_per_byte, kEngineBytes_s);
  WaySeconds s;
  s.original = bytes * network.seconds_per_byte;
  s.unite = kUnion_s + (bytes + 4 * united) / kDeviceBytes_s + united * network.seconds_per_byte;
  s.stream = kStream_s + (own + united) * ((n - 1) / n / link + 1 / kPcieBytes_s);
  return s;
}

Way choose(Way setting, const SumSeen& sum, const Network& network) {
  if (setting == Way::unite) return sum.united > kNearlyAll ? Way::original : Way::unite;
  if (!(network.seconds_per_byte > 0)) return Way::unite;
  const WaySeconds s = estimate(sum, network);
  const double best = std::min(s.unite, kBetter * s.original);
  if (network.one_gpu_a_host && s.stream < kBetter * best) return Way::stream;
  return s.unite < kBetter * s.original ? Way::unite : Way::original;
}

Way GpuChoices::next(uint64_t count, DType dtype) {
  if (known_.size() > kRemembered) known_.clear();
  const Key key{count, dtype, before_[0], before_[1]};
  before_[1] = before_[0];
  before_[0] = count;
  Known& known = known_[key];
  const bool look = known.way != Way::unite;
  if (look && known.left > 0) return --known.left, known.way;
  known.left = known.patience;
  asked_.push_back({key, look});
  return Way::unite;
}

void GpuChoices::learn(Way way) {
  const Asked asked = asked_.front();
  asked_.pop_front();
  Known& known = known_[asked.key];
  if (way != known.way)
    known = {way, kPatience, kPatience};
  else if (asked.look)  // what stays the same is looked at ever more seldom
    known.left = known.patience = std::min(2 * known.patience, kLongestPatience);
}

}  // namespace omnihvd
