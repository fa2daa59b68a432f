#include "nccl/levels.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "nccl/block_tensor.h"

namespace omnihvd {
namespace {

template <typename From, typename To>
std::unique_ptr<Tensor> blocks(const Layout& layout, uint64_t first, From& from, To& to) {
  return std::make_unique<BlockTensor<From, To>>(layout, first, from, to);
}

// A group that can be left while collectives under way still refer to it.
class Membership {
 public:
  explicit Membership(std::shared_ptr<Group> group)
      : rank(static_cast<uint64_t>(group->rank())),
        size(static_cast<uint64_t>(group->size())),
        group_(std::move(group)) {}

  uint64_t reserve() { return get()->reserve(); }
  void reduce(uint64_t place, uint64_t count, DType dtype, Group::MakeTensor make,
              Group::Done done) {
    try {
      get()->reduce(place, count, dtype, std::move(make), done);
    } catch (const std::exception& error) {
      const std::string why = error.what();
      done(&why, 0);
    }
  }
  void leave(bool wait) {
    std::shared_ptr<Group> group;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      group = std::move(group_);
    }
    if (group && wait) group->leave();
  }

  const uint64_t rank, size;

 private:
  std::shared_ptr<Group> get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!group_) throw Error("this rank has left the communicator");
    return group_;
  }

  std::mutex mutex_;
  std::shared_ptr<Group> group_;
};

class OneLevel : public Levels {
 public:
  explicit OneLevel(std::shared_ptr<Group> group)
      : group_(std::make_shared<Membership>(std::move(group))) {}

  void leave(bool wait) override { group_->leave(wait); }

  Begin collective(std::shared_ptr<StagedCollective> staged) override {
    return [=, group = group_, place = group_->reserve()](Group::Done done) {
      group->reduce(
          place, staged->where().elements, staged->where().dtype,
          [staged](const Layout& layout) {
            staged->index();
            return blocks(layout, 0, *staged, *staged);
          },
          std::move(done));
    };
  }

 private:
  const std::shared_ptr<Membership> group_;
};

// The sums of a single part.
class PartOf {
 public:
  PartOf(const BlockStore& all, uint64_t begin, uint64_t end)
      : all_(all), begin_(begin), end_(end) {}
  bool has(uint64_t block) const { return block >= begin_ && block < end_ && all_.has(block); }
  BlockBytes at(uint64_t block) const { return all_.at(block); }

 private:
  const BlockStore& all_;
  const uint64_t begin_, end_;
};

// The memory between the levels, reused by later collectives.
struct Stores {
  BlockStore of_host, of_part;
};

class StorePool : public std::enable_shared_from_this<StorePool> {
 public:
  std::shared_ptr<Stores> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Stores> stores = std::make_unique<Stores>();
    if (!idle_.empty()) {
      stores = std::move(idle_.back());
      idle_.pop_back();
    }
    return {stores.release(), [pool = shared_from_this()](Stores* used) {
              const std::lock_guard<std::mutex> lock(pool->mutex_);
              pool->idle_.emplace_back(used);
            }};
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stores>> idle_;
};

// One collective as it passes through the levels.
class Passage : public std::enable_shared_from_this<Passage> {
 public:
  Passage(std::shared_ptr<Membership> inside, std::shared_ptr<Membership> between,
          std::shared_ptr<StagedCollective> staged, std::shared_ptr<StorePool> pool)
      : inside_(std::move(inside)),
        between_(std::move(between)),
        staged_(std::move(staged)),
        where_(staged_->where()),
        begin_(where_.blocks * inside_->rank / inside_->size),
        end_(where_.blocks * (inside_->rank + 1) / inside_->size),
        pool_(std::move(pool)),
        first_(inside_->reserve()),
        middle_(begin_ < end_ ? between_->reserve() : 0),
        last_(inside_->reserve()) {}

  void begin(Group::Done done) {
    done_ = std::move(done);
    stores_ = pool_->take();
    const uint64_t block_bytes = where_.block_size * size_of(where_.dtype);
    stores_->of_host.clear(where_.blocks, where_.blocks * block_bytes);
    stores_->of_part.clear(where_.blocks, (end_ - begin_) * block_bytes);
    mine_.emplace(stores_->of_part, begin_, end_);
    reduce(*inside_, first_, where_.elements, &Passage::sum_part,
           [self = shared_from_this()](auto& layout) {
             self->staged_->index();
             return blocks(layout, 0, *self->staged_, self->stores_->of_host);
           });
  }

 private:
  using Next = void (Passage::*)();
  void reduce(Membership& group, uint64_t place, uint64_t count, Next next,
              Group::MakeTensor make) {
    group.reduce(place, count, where_.dtype, std::move(make),
                 [self = shared_from_this(), next](const std::string* failure, uint64_t) {
                   if (failure != nullptr) return self->done_(failure, 0);
                   (self.get()->*next)();
                 });
  }

  void sum_part() {
    if (begin_ == end_) return share_part();
    const uint64_t block = where_.block_size;
    const uint64_t count = std::min(end_ * block, where_.elements) - begin_ * block;
    reduce(*between_, middle_, count, &Passage::share_part,
           [self = shared_from_this()](auto& layout) {
             return blocks(layout, self->begin_, self->stores_->of_host, self->stores_->of_part);
           });
  }

  void share_part() {
    reduce(*inside_, last_, where_.elements, &Passage::end,
           [self = shared_from_this()](auto& layout) {
             return blocks(layout, 0, *self->mine_, *self->staged_);
           });
  }

  void end() { done_(nullptr, 0); }

  const std::shared_ptr<Membership> inside_, between_;
  const std::shared_ptr<StagedCollective> staged_;
  const StagingLayout& where_;  // staged_'s
  const uint64_t begin_, end_;  // blocks: this rank's part
  const std::shared_ptr<StorePool> pool_;
  std::shared_ptr<Stores> stores_;
  std::optional<PartOf> mine_;
  const uint64_t first_, middle_, last_;
  Group::Done done_;
};

class CompressFirst : public Levels {
 public:
  CompressFirst(std::shared_ptr<Group> inside, std::shared_ptr<Group> between)
      : inside_(std::make_shared<Membership>(std::move(inside))),
        between_(std::make_shared<Membership>(std::move(between))) {}

  void leave(bool wait) override {
    inside_->leave(wait);
    between_->leave(wait);
  }

  Begin collective(std::shared_ptr<StagedCollective> staged) override {
    const auto passage = std::make_shared<Passage>(inside_, between_, std::move(staged), pool_);
    return [passage](Group::Done done) { passage->begin(std::move(done)); };
  }

 private:
  const std::shared_ptr<Membership> inside_, between_;
  const std::shared_ptr<StorePool> pool_ = std::make_shared<StorePool>();
};

}  // namespace

std::shared_ptr<Levels> one_level(std::shared_ptr<Group> group) {
  return std::make_shared<OneLevel>(std::move(group));
}

std::shared_ptr<Levels> compress_first(std::shared_ptr<Group> inside,
                                       std::shared_ptr<Group> between) {
  return std::make_shared<CompressFirst>(std::move(inside), std::move(between));
}

}  // namespace omnihvd
