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
  void compact(CuAddress tensor, uint64_t elements, uint32_t flags, CuAddress totals,
               CuAddress bitmap, CuAddress records, CuAddress data, CuStream stream) const;
  void scatter(CuAddress tensor, uint64_t elements, CuAddress records, CuAddress count,
               CuAddress data, CuStream stream) const;
  // For floating-point types only.
  void scale(CuAddress in, CuAddress out, uint64_t elements, double factor, CuStream stream) const;
  void mark(CuAddress tensor, uint64_t elements, uint32_t flags, CuAddress marks,
            CuStream stream) const;
  void unite(CuAddress marks, uint64_t stride, uint32_t ranks, uint32_t rank, uint64_t words,
             uint64_t words_per_chunk, CuAddress united, CuAddress prefix, CuAddress counts,
             CuStream stream) const;
  void total(CuAddress counts, uint64_t chunks, CuAddress starts, CuAddress seen, uint64_t number,
             CuStream stream) const;
  void gather(CuAddress tensor, uint64_t elements, const kernels::Union& part, CuAddress buffer,
              CuStream stream) const;
  void spread(CuAddress tensor, uint64_t elements, const kernels::Union& part, CuAddress buffer,
              bool fill, CuStream stream) const;
  void rest(CuAddress in, CuAddress out, uint64_t elements, const kernels::Union& windows,
            CuAddress rest, CuAddress data, double factor, CuStream stream) const;

 private:
  friend class KernelTable;
  uint32_t format() const { return dtype_ == DType::bf16 ? kernels::kBfloat16 : kernels::kIeee; }
  uint64_t blocks_of(uint64_t elements) const { return (elements + block_size_ - 1) / block_size_; }

  enum Function {
    kCompact,
    kScatter,
    kScale,
    kMark,
    kUnite,
    kTotal,
    kGather,
    kSpread,
    kRest,
    kFunctions
  };
  using Functions = std::array<CuFunction, kFunctions>;
  static Functions load(CuDevice device, const std::string& path, bool of_floats);
  template <typename... Arguments>
  void launch(Function which, uint64_t grid, unsigned threads, CuStream stream,
              Arguments... arguments) const;

  Functions functions_{};
  DType dtype_ = DType::f32;
  uint32_t width_ = 0, block_size_ = 0;
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
