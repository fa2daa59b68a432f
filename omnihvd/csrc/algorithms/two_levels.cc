#include "algorithms/two_levels.h"

#include <algorithm>
#include <utility>

#include "algorithms/host_grid.h"
#include "algorithms/part_exchange.h"
#include "base/error.h"
#include "engine/on_all_ranks.h"
#include "engine/until_done.h"

namespace omnihvd {
namespace {

// An in-place tensor that knows which blocks are non-zero, and notes which sums are.
class NotedTensor : public HostTensor {
 public:
  NotedTensor(const Layout& layout, uint8_t* data, int rank, uint8_t* has)
      : HostTensor(layout, data, data, uint32_t(rank)),
        dense_(layout.shape().arithmetic.dense()),
        has_(has) {}
  bool nonzero(uint64_t block) override {
    if (has_[block]) return HostTensor::nonzero(block);
    if (dense_) write_zero(block);  // it is sent all the same
    return false;
  }
  void write(uint64_t block, const BlockRef& sum) override {
    has_[block] = 1;
    HostTensor::write(block, sum);
  }

 private:
  const bool dense_;
  uint8_t* const has_;  // [block]
};

// Makes an object among some of the ranks. Throws Error on all ranks if any part fails.
template <typename Make>
void among(Exchange& all, const std::vector<int>& ranks, Make make) {
  PartExchange part(all, ranks);
  std::string failure;
  try {
    make(part);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  part.finish(failure);
}

}  // namespace

std::unique_ptr<TwoLevels> TwoLevels::create(Exchange& all, const Settings& agreed,
                                             const std::vector<std::string>& hosts,
                                             std::string* obstacle) {
  const GridPlace place = place_in_grid(all.rank(), hosts);
  std::unique_ptr<TwoLevels> levels(new TwoLevels);
  levels->local_index_ = uint64_t(place.local_index);
  levels->local_size_ = place.inside.size();
  levels->block_size_ = agreed.block_size;
  const std::string& host = hosts[size_t(all.rank())];
  std::string here;
  among(all, place.inside, [&](Exchange& inside) {
    levels->inside_ = SharedSum::create(inside, agreed, host, &here, place.inside);
  });
  *obstacle = on_all_ranks(all, [&] {
    if (!levels->inside_) throw Error("on " + host + ": " + here);
  });
  if (!obstacle->empty()) return nullptr;

  const std::shared_ptr<Engine> engine = process_engine(all);
  for (const int rank : place.across)
    levels->ranks_between_ += (levels->ranks_between_.empty() ? "" : ", ") + std::to_string(rank);
  among(all, place.across,
        [&](Exchange& across) { levels->between_ = engine->join(across, agreed); });
  return levels;
}

uint64_t TwoLevels::allreduce(const void* in, void* out, uint64_t count, DType dtype,
                              const Codec& given, const Codec& sent) {
  const uint64_t blocks = (count + block_size_ - 1) / block_size_;
  const SharedSum::Blocks part{blocks * local_index_ / local_size_,
                               blocks * (local_index_ + 1) / local_size_};
  uint8_t* const has = (has_.assign(blocks, 0), has_.data());

  // The ranks of other hosts learn why this host cannot go on.
  const auto inside = [&](auto step) {
    try {
      return step();
    } catch (const Error& error) {
      between_->fail(error.what());
      throw;
    }
  };
  inside([&] { return inside_->reduce_scatter(in, out, count, dtype, given, part, has); });
  if (part.first < part.end) {
    const uint64_t begin = part.first * block_size_;
    const uint64_t elements = std::min(part.end * block_size_, count) - begin;
    try {
      sum_between(static_cast<uint8_t*>(out) + begin * size_of(dtype), elements, dtype,
                  has + part.first, sent.of_part(uint32_t(local_index_)));
    } catch (const Error& error) {
      inside_->abort(error.what());
      throw;
    }
  }
  return inside([&] { return inside_->allgather(out, count, dtype, part, has, in != out); });
}

void TwoLevels::fail(const std::string& why) {
  inside_->abort(why);
  between_->fail(why);
}

void TwoLevels::sum_between(uint8_t* part, uint64_t count, DType dtype, uint8_t* has,
                            const Codec& codec) {
  const auto make = [&](const Layout& layout) {
    return std::make_unique<NotedTensor>(layout, part, between_->rank(), has);
  };
  try {
    until_done([&](Group::Done done) {
      between_->reduce(between_->reserve(), count, dtype, make, std::move(done), codec);
    });
  } catch (const Error& error) {
    throw Error("among ranks " + ranks_between_ + ", counted from 0: " + error.what());
  }
}

}  // namespace omnihvd
