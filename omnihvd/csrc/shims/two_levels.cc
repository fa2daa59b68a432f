#include "shims/two_levels.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "shims/host_grid.h"
#include "shims/part_exchange.h"

namespace omnihvd {
namespace {

// In place; notes the blocks of sums. has: [block]. all: look at each block, not only at those.
class NotedTensor : public HostTensor {
 public:
  NotedTensor(const Layout& layout, uint8_t* data, int rank, uint8_t* has, bool all)
      : HostTensor(layout, data, data, uint32_t(rank)), has_(has), all_(all) {}
  bool nonzero(uint64_t block) override {
    return (all_ || has_[block]) && HostTensor::nonzero(block);
  }
  void write(uint64_t block, const BlockRef& sum) override {
    has_[block] = 1;
    HostTensor::write(block, sum);
  }

 private:
  uint8_t* const has_;
  const bool all_;
};

// Of the blocks from `first` to `end` what is there, elsewhere nothing, though there may be: a sum
// of the host, for which the hosts' sum comes.
class PartTensor : public HostTensor {
 public:
  PartTensor(const Layout& layout, uint8_t* data, const uint8_t* has, uint64_t first, uint64_t end)
      : HostTensor(layout, data, data), has_(has), first_(first), end_(end) {}
  bool nonzero(uint64_t block) override {
    return mine(block) && has_[block] && HostTensor::nonzero(block);
  }
  bool wants_zeros() const override { return true; }
  void write_zero(uint64_t block) override {
    if (!mine(block) && has_[block]) HostTensor::write_zero(block);
  }

 private:
  bool mine(uint64_t block) const { return block >= first_ && block < end_; }

  const uint8_t* const has_;
  const uint64_t first_, end_;
};

}  // namespace

TwoLevels::TwoLevels(Engine& engine, Exchange& all, const Agreement& agreement)
    : block_size_(agreement.settings.block_size) {
  const GridPlace place = place_in_grid(all.rank(), agreement.hosts);
  local_index_ = static_cast<uint64_t>(place.local_index);
  local_size_ = place.inside.size();
  inside_ = join(engine, all, place.inside, true, agreement.settings);
  between_ = join(engine, all, place.across, false, agreement.settings);
}

TwoLevels::Level TwoLevels::join(Engine& engine, Exchange& all, const std::vector<int>& ranks,
                                 bool colocated, const Settings& agreed) {
  Level level;
  for (const int rank : ranks)
    level.ranks += (level.ranks.empty() ? "" : ", ") + std::to_string(rank);
  PartExchange part(all, ranks);
  std::string failure;
  try {
    level.group = engine.join(part, colocated, agreed.timeout_s);
    // A part uses the settings of its own first rank.
    if (level.group->settings().block_size != agreed.block_size)
      throw Error("OMNIHVD_BLOCK_SIZE is not the same on all ranks");
  } catch (const std::exception& error) {
    failure = error.what();
  }
  part.finish(failure);
  return level;
}

uint64_t TwoLevels::allreduce(void* data, uint64_t count, DType dtype, const Codec& codec) {
  auto* const bytes = static_cast<uint8_t*>(data);
  const uint64_t blocks = (count + block_size_ - 1) / block_size_;
  const uint64_t first = blocks * local_index_ / local_size_;
  const uint64_t end = blocks * (local_index_ + 1) / local_size_;
  uint8_t* const has = (has_.assign(blocks, 0), has_.data());

  reduce(
      inside_, count, dtype,
      [&](const Layout& layout) {
        return std::make_unique<NotedTensor>(layout, bytes, 0, has, true);
      },
      codec.exactly());
  if (first < end) {
    const uint64_t begin = first * block_size_;
    uint8_t* const part = bytes + begin * size_of(dtype);
    const auto make = [&](const Layout& layout) {
      return std::make_unique<NotedTensor>(layout, part, between_.group->rank(), has + first,
                                           false);
    };
    reduce(between_, std::min(end * block_size_, count) - begin, dtype, make,
           codec.of_part(uint32_t(local_index_)));
  }
  return reduce(
      inside_, count, dtype,
      [&](const Layout& layout) {
        return std::make_unique<PartTensor>(layout, bytes, has, first, end);
      },
      codec.exactly());
}

uint64_t TwoLevels::reduce(Level& level, uint64_t count, DType dtype, const Group::MakeTensor& make,
                           const Codec& codec) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  uint64_t united_blocks = 0;
  std::optional<std::string> failure;
  Group& group = *level.group;
  const auto end = [&](const std::string* why, uint64_t united) {
    united_blocks = united;
    const std::lock_guard<std::mutex> lock(mutex);
    if (why != nullptr) failure = *why;
    done = true;
    changed.notify_one();
  };
  group.reduce(group.reserve(), count, dtype, make, end, codec);
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return done; });
  if (failure) throw Error("among ranks " + level.ranks + ", counted from 0: " + *failure);
  return united_blocks;
}

}  // namespace omnihvd
