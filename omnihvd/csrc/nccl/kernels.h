// The kernels (kernels/*.cu), compiled for this machine's GPUs beforehand: `omnihvd kernels`.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernels/abi.cuh"
#include "nccl/cuda_driver.h"
#include "numeric/dtype.h"

namespace omnihvd {

// Launches the kernels that kernels/abi.cuh describes, for one dtype and block size.
class GpuKernels {
 public:
  void mark(CuAddress tensor, uint64_t elements, uint64_t words, uint32_t flags, uint32_t trailer,
            CuAddress marks, CuStream stream) const;
  void unite(CuAddress own, CuAddress all, uint64_t words, uint64_t words_per_chunk,
             CuAddress united, CuAddress prefix, CuAddress counts, CuAddress arrived,
             CuAddress starts, CuAddress seen, uint64_t number, CuStream stream) const;
  void gather(CuAddress tensor, uint64_t elements, const kernels::Union& part, CuAddress buffer,
              CuStream stream) const;
  void spread(CuAddress tensor, uint64_t elements, const kernels::Union& part, CuAddress buffer,
              bool fill, CuStream stream) const;
  void rest(CuAddress in, CuAddress out, uint64_t elements, const kernels::Union& windows,
            CuAddress rest, CuAddress data, double factor, CuStream stream) const;

 private:
  friend class KernelTable;
  uint32_t format() const { return dtype_ == DType::bf16 ? kernels::kBfloat16 : kernels::kIeee; }

  enum Function { kMark, kUnite, kGather, kSpread, kRest, kFunctions };
  using Functions = std::array<CuFunction, kFunctions>;
  static Functions load(CuDevice device, const std::string& path);
  template <typename... Arguments>
  void launch(Function which, uint64_t grid, unsigned threads, CuStream stream,
              Arguments... arguments) const;

  Functions functions_{};
  DType dtype_ = DType::f32;
};

// The kernels for all dtypes, on one device.
class KernelTable {
 public:
  // In a CudaScope of the device. `cache`: the value of OMNIHVD_KERNEL_CACHE. Throws Error that
  // says how to get missing kernels.
  KernelTable(CuDevice device, uint32_t block_size, const std::string& cache);
  const GpuKernels& of(DType dtype) const { return kernels_[static_cast<int>(dtype)]; }

 private:
  GpuKernels kernels_[kDTypes];
};

}  // namespace omnihvd
