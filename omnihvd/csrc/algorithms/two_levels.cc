#include "algorithms/two_levels.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "algorithms/host_grid.h"
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

}  // namespace

std::unique_ptr<TwoLevels> TwoLevels::create(Exchange& all, const Settings& agreed,
                                             const std::vector<std::string>& hosts,
                                             std::string* obstacle) {
  const GridPlace place = place_in_grid(all.rank(), hosts);
  std::unique_ptr<TwoLevels> levels(new TwoLevels);
  levels->local_index_ = uint64_t(place.local_index);
  levels->local_size_ = place.inside.size();
  levels->block_size_ = agreed.block_size;
  levels->codes_inside_ = agreed.compress_first != CompressionFirst::off;
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

std::unique_ptr<Algorithm> make_two_levels(Exchange& exchange, const Settings& agreed,
                                           const std::vector<std::string>& hosts) {
  const Hierarchy wanted = agreed.hierarchy;
  if (wanted == Hierarchy::off) return nullptr;
  std::string obstacle;
  std::unique_ptr<TwoLevels> levels;
  if (const char* const no_grid = grid_obstacle(hosts))
    obstacle = no_grid;
  else
    levels = TwoLevels::create(exchange, agreed, hosts, &obstacle);
  static std::once_flag once;
  if (!levels && exchange.rank() == 0)
    std::call_once(once, [&] {
      log(wanted == Hierarchy::on ? LogLevel::warning : LogLevel::info, "the ", hosts.size(),
          " ranks of a communicator stream without reducing inside the hosts first: ", obstacle);
    });
  return levels;
}

SumMade TwoLevels::run(const Call& call, Library&) {
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
