// Estimates what a sum on GPUs takes: NCCL's own allreduce, by NCCL's tuning constants (2.27, H100,
// NVLink, 8 x 400 Gbit/s a host), and the steps of a sum on the union. Nothing here is measured.
// benchmarks/gpu_model.py has the same formulas, and a table of them.
//
// Pure. All numbers are integers, so that all ranks get the same ones.
#pragma once

#include <cstdint>

namespace omnihvd {

class GpuModel {
 public:
  GpuModel(int ranks, int hosts);

  // All in nanoseconds. NCCL's allreduce of so many bytes:
  uint64_t allreduce(uint64_t bytes) const;
  // To find the union of a tensor of so many bytes in so many blocks. `original`: what NCCL takes
  // for all bytes; it scales the estimates of NCCL's other calls.
  uint64_t look(uint64_t bytes, uint64_t blocks, uint64_t original) const;
  // To sum on it, after the look: `summed` of the bytes, in parts of at most `part_bytes`.
  uint64_t united(uint64_t bytes, uint64_t summed, uint64_t part_bytes, uint64_t original) const;

 private:
  uint64_t scaled(uint64_t ns, uint64_t bytes, uint64_t original) const;
  uint64_t peers_, levels_;  // other ranks of a host; log2 of the hosts, rounded down
};

}  // namespace omnihvd
