// Allreduce in two levels, for several hosts with the same number of ranks on each.
//
// The ranks form a grid, hosts by local index. With L ranks on each of H hosts:
//   1. inside each host: reduce-scatter in shared memory; local index i has part i's sum
//   2. between the hosts: the engine sums part i over the H ranks with local index i
//   3. inside each host: allgather of the L parts in shared memory
// A host then streams each block that is non-zero on any of its ranks once, not once a rank. Step 1
// notes which blocks are non-zero, so that the tensor is inspected only once.
#include <algorithm>
#include <mutex>
#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/host_grid.h"
#include "algorithms/shared_memory/shared_sum.h"
#include "algorithms/streamed.h"
#include "base/error.h"
#include "base/log.h"
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

// An out-of-band allgather among some ranks of a communicator, over that of all its ranks: so they
// make a group of their own. All ranks must use theirs at the same time; parts may end, or fail,
// after different numbers of steps.
class PartExchange : public Exchange {
 public:
  // members: ranks, ascending; this one is among them.
  PartExchange(Exchange& all, const std::vector<int>& members)
      : Exchange(int(std::find(members.begin(), members.end(), all.rank()) - members.begin()),
                 int(members.size())),
        all_(all),
        members_(members) {}

  // Each rank's bytes begin with their kind: a step, or the end of its part.
  std::vector<std::string> allgather(const std::string& mine) override {
    const std::vector<std::string> said = all_.allgather("+" + mine);
    std::vector<std::string> parts;
    for (const int member : members_) {
      // The ranks of a part all fail together, but a rank may also fail alone for a local reason.
      if (said[member].empty() || said[member][0] != '+')
        throw Error("rank " + std::to_string(member) + " failed: see its message");
      parts.push_back(said[member].substr(1));
    }
    return parts;
  }

  // Collective over all ranks: ends when all parts have ended. Throws Error on all ranks if one
  // failed.
  void finish(const std::string& failure) {
    const std::string mine = "-" + failure;
    while (true) {
      const std::vector<std::string> said = all_.allgather(mine);
      if (std::any_of(said.begin(), said.end(),
                      [](const std::string& s) { return s.empty() || s[0] != '-'; }))
        continue;
      for (size_t rank = 0; rank < said.size(); ++rank)
        if (said[rank].size() > 1)
          throw Error("rank " + std::to_string(rank) + ": " + said[rank].substr(1));
      return;
    }
  }

 private:
  Exchange& all_;
  const std::vector<int>& members_;
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

class TwoLevels final : public Algorithm {
 public:
  TwoLevels(const GridPlace& place, const Settings& agreed, std::unique_ptr<SharedSum> inside,
            std::shared_ptr<Group> between)
      : local_index_(uint64_t(place.local_index)),
        local_size_(place.inside.size()),
        block_size_(agreed.block_size),
        codes_inside_(agreed.compress_first != CompressionFirst::off),
        inside_(std::move(inside)),
        between_(std::move(between)) {
    for (const int rank : place.across)
      ranks_between_ += (ranks_between_.empty() ? "" : ", ") + std::to_string(rank);
  }

  Reason can(const Call& call) const override {
    return call.scatters() ? Reason::levels : Reason::none;
  }

  // The union that it returns is of the blocks that are non-zero on any rank of this host, or on
  // any rank in this rank's part. `stats()` counts steps 1 and 2. The codec is for what hosts send,
  // which are sums already; with OMNIHVD_COMPRESS_FIRST for a rank's tensor, too.
  SumMade run(const Call& call, Library&) override {
    const uint64_t count = call.count;
    const DType dtype = call.dtype;
    void* const out = call.out;
    const Codec given = codes_inside_ ? call.codec : Codec();
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
    inside([&] { return inside_->reduce_scatter(call.in, out, count, dtype, given, part, has); });
    if (part.first < part.end) {
      const uint64_t begin = part.first * block_size_;
      const uint64_t elements = std::min(part.end * block_size_, count) - begin;
      try {
        sum_between(static_cast<uint8_t*>(out) + begin * size_of(dtype), elements, dtype,
                    has + part.first, call.codec.of_part(uint32_t(local_index_)));
      } catch (const Error& error) {
        inside_->abort(error.what());
        throw;
      }
    }
    const uint64_t united =
        inside([&] { return inside_->allgather(out, count, dtype, part, has, call.in != out); });
    return {streamed_way(call.codec), united};
  }

  void set_timeout(double seconds) override {
    inside_->set_timeout(seconds);
    between_->set_timeout(seconds);
  }
  void fail(const std::string& why) override {
    inside_->abort(why);
    between_->fail(why);
  }
  std::shared_ptr<Group> group() const override { return between_; }

 private:
  void sum_between(uint8_t* part, uint64_t count, DType dtype, uint8_t* has, const Codec& codec) {
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

  const uint64_t local_index_, local_size_, block_size_;
  const bool codes_inside_;
  const std::unique_ptr<SharedSum> inside_;
  const std::shared_ptr<Group> between_;
  std::string ranks_between_;  // for messages
  std::vector<uint8_t> has_;   // [block] non-zero on some rank, as far as known here
};

}  // namespace

std::unique_ptr<Algorithm> connect_two_levels(Exchange& all, const Settings& agreed,
                                              const std::vector<std::string>& hosts,
                                              std::string* obstacle) {
  const GridPlace place = place_in_grid(all.rank(), hosts);
  const std::string& host = hosts[size_t(all.rank())];
  std::string here;
  std::unique_ptr<SharedSum> shared;
  among(all, place.inside, [&](Exchange& inside) {
    shared = SharedSum::create(inside, agreed, host, &here, place.inside);
  });
  *obstacle = on_all_ranks(all, [&] {
    if (!shared) throw Error("on " + host + ": " + here);
  });
  if (!obstacle->empty()) return nullptr;

  const std::shared_ptr<Engine> engine = process_engine(all);
  std::shared_ptr<Group> group;
  among(all, place.across, [&](Exchange& across) { group = engine->join(across, agreed); });
  return std::make_unique<TwoLevels>(place, agreed, std::move(shared), std::move(group));
}

std::unique_ptr<Algorithm> make_two_levels(Exchange& exchange, const Settings& agreed,
                                           const std::vector<std::string>& hosts) {
  const Hierarchy wanted = agreed.hierarchy;
  if (wanted == Hierarchy::off) return nullptr;
  std::string obstacle;
  std::unique_ptr<Algorithm> levels;
  if (const char* const no_grid = grid_obstacle(hosts))
    obstacle = no_grid;
  else
    levels = connect_two_levels(exchange, agreed, hosts, &obstacle);
  static std::once_flag once;
  if (!levels && exchange.rank() == 0)
    std::call_once(once, [&] {
      log(wanted == Hierarchy::on ? LogLevel::warning : LogLevel::info, "the ", hosts.size(),
          " ranks of a communicator stream without reducing inside the hosts first: ", obstacle);
    });
  return levels;
}

}  // namespace omnihvd
