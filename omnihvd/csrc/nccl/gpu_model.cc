#include "nccl/gpu_model.h"

#include <algorithm>

namespace omnihvd {
namespace {

constexpr uint64_t kDeviceBytes_us = 1'500'000;           // bandwidth of device memory
constexpr uint64_t kLook_ns = 8'000, kKernel_ns = 3'000;  // mark and unite; one that depends

constexpr uint64_t ns(uint64_t bytes, uint64_t bytes_us) { return bytes * 1000 / bytes_us; }

}  // namespace

GpuModel::GpuModel(int ranks, int hosts)
    : peers_(uint64_t(ranks / std::max(hosts, 1) - 1)), levels_(0) {
  for (int rest = hosts; rest > 1; rest /= 2) ++levels_;
}

// The fastest of NCCL's trees (protocols LL, LL128 and Simple) and its tree with NVLink SHARP.
uint64_t GpuModel::allreduce(uint64_t bytes) const {
  const auto tree = [&](uint64_t base, uint64_t inside, uint64_t between, uint64_t bytes_us) {
    return base + 2 * (peers_ * inside + levels_ * between) + ns(bytes, bytes_us);
  };
  return std::min({tree(6'800, 600, 5'000, 8'160), tree(14'000, 1'250, 8'500, 117'300),
                   tree(8'400, 4'000, 14'000, 132'940), tree(25'000, 0, 20'900, 166'667)});
}

// Never less than the estimate: a slower network also has longer latencies.
uint64_t GpuModel::scaled(uint64_t time, uint64_t bytes, uint64_t original) const {
  return std::max(time, time * original / allreduce(bytes));
}

uint64_t GpuModel::look(uint64_t bytes, uint64_t blocks, uint64_t original) const {
  return ns(bytes, kDeviceBytes_us) + kLook_ns + scaled(allreduce(blocks), bytes, original);
}

uint64_t GpuModel::united(uint64_t bytes, uint64_t summed, uint64_t part_bytes,
                          uint64_t original) const {
  uint64_t time = kKernel_ns + ns(4 * summed, kDeviceBytes_us), reduced = 0;
  for (uint64_t left = summed; left > 0;) {
    const uint64_t part = std::min(left, part_bytes);
    reduced += allreduce(part);
    time += 2 * kKernel_ns;
    left -= part;
  }
  return time + scaled(reduced, bytes, original);
}

}  // namespace omnihvd
