// A sum on the union of a small tensor, with a result that is known.

#include <cstdio>
#include <cstring>
#include <string>

#include "nccl/union_steps.h"

namespace omnihvd {
namespace {

struct Coded {
  DType dtype;
  NcclType type;
  uint32_t negative_zero, values[5];  // the bits of -0.0, and of 0 to 4
};
constexpr Coded kCoded[] = {
    {DType::f32,
     NcclType::float32,
     0x80000000,
     {0, 0x3f800000, 0x40000000, 0x40400000, 0x40800000}},
    {DType::f16, NcclType::float16, 0x8000, {0, 0x3c00, 0x4000, 0x4200, 0x4400}},
};
constexpr uint64_t kNumber = ~uint64_t(1);  // of no other sum
constexpr uint64_t kTail = 5;               // elements of the last block

// Two ranks have a block, so that its sum is exact in every type, however many ranks there are.
// Nobody has each fourth one.
bool is_in_union(uint64_t block) { return block % 4 != 3; }
uint32_t value_of(uint64_t element, uint64_t block, uint64_t rank, uint64_t ranks) {
  const bool has = rank == block % ranks || rank == (block + 1) % ranks;
  return is_in_union(block) && has ? 1 + uint32_t((element * 2654435761 >> 7 ^ rank) % 2) : 0;
}
uint32_t sum_of(uint64_t element, uint64_t block, uint64_t ranks) {
  return value_of(element, block, block % ranks, ranks) +
         value_of(element, block, (block + 1) % ranks, ranks);
}

std::string bits_text(uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof text, "%#x", bits);
  return text;
}

}  // namespace

// All ranks sum all types, whatever they find: their collectives must match.
std::string UnionSteps::try_out(const NcclExchange& exchange, int rank) {
  const uint64_t block_size = settings_.block_size, count = (kTrialBlocks - 1) * block_size + kTail;
  std::string wrong;
  for (const Coded& coded : kCoded) {
    const uint64_t width = size_of(coded.dtype);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t block = i / block_size;
      const uint32_t bits = is_in_union(block)
                                ? coded.values[value_of(i, block, uint64_t(rank), ranks_)]
                                : coded.negative_zero;
      std::memcpy(window() + i * width, &bits, width);
    }
    check_cuda(cuda().memcpy_htod_async(trial_, window(), count * width, exchange.stream()),
               "cuMemcpyHtoDAsync");
    void* const tensor = reinterpret_cast<void*>(trial_);
    UnionSum sum{
        {tensor, tensor, count, coded.type, NcclOp::sum, exchange.stream(), exchange.comm()},
        coded.dtype,
        {}};
    sum.call.number = kNumber;
    sum.call.capacity = kTrialBlocks;
    queue(sum, exchange);
    check_cuda(cuda().memcpy_dtoh_async(window(), trial_, count * width, exchange.stream()),
               "cuMemcpyDtoHAsync");
    wait_for(exchange, "the first sum on a union");
    for (uint64_t i = 0; i < count && wrong.empty(); ++i) {
      const uint32_t expected = coded.values[sum_of(i, i / block_size, ranks_)];
      uint32_t found = 0;
      std::memcpy(&found, window() + i * width, width);
      if (found != expected)
        wrong = std::string(info_of(coded.dtype).name) + ", element " + std::to_string(i) + ": " +
                bits_text(found) + " where " + bits_text(expected) + " was expected";
    }
  }
  return wrong.empty() ? ""
                       : "omnihvd's kernels sum wrongly on this GPU (" + wrong +
                             "): remove OMNIHVD_KERNEL_CACHE's folder, run `omnihvd kernels`, and "
                             "report it if it stays so";
}

void UnionSteps::queue(const UnionSum& sum, const NcclExchange& exchange) {
  const auto made = [&](NcclResult result, const char* what) {
    settle(result, exchange.comm(), exchange.aborted(), what);
  };
  mark(sum, 0);
  made(this->exchange(sum), "ncclAllReduce of the marks");
  unite(sum);
  for (uint64_t part = 0; part < parts(sum); ++part) {
    gather(sum, part);
    if (levels_) {
      made(scatter_inside(sum, part, inside()), "ncclReduceScatter inside the hosts");
      made(reduce_between(sum, part, between()), "ncclAllReduce between the hosts");
      made(gather_inside(sum, part, inside()), "ncclAllGather inside the hosts");
    } else {
      made(reduce(sum, part), "ncclAllReduce of a union");
    }
    spread(sum, part);
  }
  check_cuda(cuda().event_record(free_, sum.r.stream), "cuEventRecord");  // without `rest`
}

}  // namespace omnihvd
