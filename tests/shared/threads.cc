// Small sums of ranks that are threads, in memory that the thread sanitizer sees: threads RANKS
// SUMS It prints "well", or ends with status 1. With RELAXED all loads of stamps are relaxed: a
// fault for the sanitizer to find.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "numeric/block_ops_set.h"
#ifdef RELAXED
#define load() load(std::memory_order_relaxed)
#endif
#include "algorithms/shared_memory/small_memory.cc"

namespace omnihvd {

const BlockOps& block_ops(DType dtype) { return portable_block_ops.of[static_cast<int>(dtype)]; }

namespace {

constexpr size_t kMost = 256 << 10;

class Rank final : private SmallMemory {
 public:
  using SmallMemory::SmallMemory;

  // Each value tells rank, index and number of the sum.
  bool sums_well(int number) {
    static constexpr size_t kCounts[] = {1, 37, 3000, 20000};
    const size_t count = kCounts[number % 4], size = size_t(ranks());
    std::vector<double> tensor(count);
    for (size_t i = 0; i < count; ++i) tensor[i] = double(i * size + size_t(rank_ + number));
    if (number % 5 == 0) pass({count, DType::i8});
    sum(tensor.data(), tensor.data(), {count, DType::f64});
    for (size_t i = 0; i < count; ++i)
      if (tensor[i] != double((i * size + size_t(number)) * size + size * (size - 1) / 2))
        return false;
    return true;
  }

 private:
  void await(Stamp stamp) override {
    const auto all = [&] { return all_stamped(stamp); };
    while (!all()) bell_.sleep_unless(all, std::chrono::milliseconds(1000));
  }
  void differs(int, SmallCall) override { std::exit(1); }
};

}  // namespace
}  // namespace omnihvd

int main(int, char** argv) {
  using namespace omnihvd;
  const int ranks = std::atoi(argv[1]), sums = std::atoi(argv[2]);
  const size_t bytes = SmallMemory::part_bytes(kMost);
  std::vector<std::unique_ptr<uint8_t, void (*)(void*)>> memory;
  std::vector<uint8_t*> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    memory.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(128, bytes)), std::free);
    std::memset(memory.back().get(), 0, bytes);
    parts.push_back(memory.back().get());
  }
  alignas(128) uint8_t common[sizeof(Bell)] = {};
  std::atomic<bool> well{true};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Rank mine(parts, reinterpret_cast<Bell&>(common), kMost, rank);
      for (int number = 0; number < sums; ++number)
        if (!mine.sums_well(number)) well.store(false);
    });
  for (std::thread& thread : threads) thread.join();
  std::puts(well.exchange(true) ? "well" : "wrong");
  return 0;
}
