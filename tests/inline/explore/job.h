// A small job of an in-network aggregator, and what each of its results must be.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "innetwork/packet.h"
#include "innetwork/tensor.h"

namespace explore {

using omnihvd::InlineTensor;

// The machines did what they must not do.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void must(bool holds, const std::string& what) {
  if (!holds) throw Violation(what);
}

struct Job {
  uint32_t workers, slots;
  uint32_t first_round;  // of each slot: near 2^32 to see rounds wrap around
  bool prompt;           // workers send what they have to send before they receive more
  std::vector<std::vector<uint32_t>> has;  // [sum][worker]: bits of the blocks that it has
  uint32_t blocks;                         // in each sum
};

using Block = std::array<int32_t, INLINE_ELEMENTS>;

// Unique per sum, worker, block and element. The sum over any choice of workers, each any number of
// times up to 7, says who and how often.
inline Block block_of(uint32_t sum, uint32_t worker, uint32_t block) {
  Block values;
  for (uint32_t i = 0; i < INLINE_ELEMENTS; ++i)
    values[i] = int32_t((((sum * 32 + block) * INLINE_ELEMENTS + i) << 16 | 1) << (3 * worker));
  return values;
}
inline uint8_t exponent_of(uint32_t sum, uint32_t worker, uint32_t block) {
  return uint8_t(1 + (sum * 91 + block * 13 + worker * 37) % 250);
}

// A result that a slot must send in a round, derived from the tensors alone.
struct Expected {
  uint32_t block = INLINE_NONE, next = INLINE_NONE;
  uint8_t exponent = 0;  // of `next`
  Block sum{};
};

inline uint8_t largest_exponent(const Job& job, uint32_t sum, uint32_t block) {
  uint8_t largest = 0;
  for (uint32_t w = 0; w < job.workers; ++w)
    if (job.has[sum][w] >> block & 1) largest = std::max(largest, exponent_of(sum, w, block));
  return largest;
}

inline Block sum_of(const Job& job, uint32_t sum, uint32_t block) {
  Block total{};
  for (uint32_t w = 0; w < job.workers; ++w) {
    if (!(job.has[sum][w] >> block & 1)) continue;
    const Block values = block_of(sum, w, block);
    for (uint32_t i = 0; i < INLINE_ELEMENTS; ++i)
      total[i] = int32_t(uint32_t(total[i]) + uint32_t(values[i]));
  }
  return total;
}

// All rounds of a slot, from its first.
inline std::vector<Expected> expected_of(const Job& job, uint32_t slot) {
  std::vector<Expected> rounds;
  for (uint32_t sum = 0; sum < job.has.size(); ++sum) {
    uint32_t any = 0;
    for (const uint32_t has : job.has[sum]) any |= has;
    rounds.emplace_back();
    for (uint32_t block = slot; block < job.blocks; block += job.slots) {
      if (!(any >> block & 1)) continue;
      rounds.back().next = block;
      rounds.back().exponent = largest_exponent(job, sum, block);
      Expected round;
      round.block = block;
      round.sum = sum_of(job, sum, block);
      rounds.push_back(round);
    }
  }
  return rounds;
}

// A worker's tensor of one sum.
class Tensor final : public InlineTensor {
 public:
  Tensor(const Job& job, uint32_t worker) : job_(&job), worker_(worker) {}
  void begin(uint32_t sum) {
    sum_ = sum;
    data.assign(job_->blocks, Block{});
    for (uint32_t b = 0; b < job_->blocks; ++b)
      if (has(b)) data[b] = block_of(sum, worker_, b);
  }
  uint32_t blocks() const override { return job_->blocks; }
  bool has(uint32_t block) override { return job_->has[sum_][worker_] >> block & 1; }
  uint8_t exponent(uint32_t block) override { return exponent_of(sum_, worker_, block); }
  void read(uint32_t block, uint8_t exponent, uint8_t* out) const override {
    must(exponent == largest_exponent(*job_, sum_, block), "a block is sent by a wrong exponent");
    std::memcpy(out, data[block].data(), INLINE_BLOCK_BYTES);
  }
  void write(uint32_t block, uint8_t exponent, const uint8_t* in) override {
    must(exponent == largest_exponent(*job_, sum_, block), "a sum is read by a wrong exponent");
    std::memcpy(data[block].data(), in, INLINE_BLOCK_BYTES);
  }
  void must_be_the_sum(uint64_t own, uint64_t united) const {
    uint64_t all = 0;
    for (uint32_t b = 0; b < job_->blocks; ++b) {
      must(data[b] == sum_of(*job_, sum_, b), "a worker's sum is wrong");
      all += largest_exponent(*job_, sum_, b) > 0;
    }
    const uint32_t has = job_->has[sum_][worker_];
    must(united == all && own == uint64_t(__builtin_popcount(has)), "blocks are counted wrongly");
  }

  std::vector<Block> data;

 private:
  const Job* job_;
  uint32_t worker_, sum_ = 0;
};

}  // namespace explore
