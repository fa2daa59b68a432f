#include "simulator/csrc/sum.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "simulator/csrc/engine_thread.h"
#include "simulator/csrc/world.h"

namespace omnihvd::simulation {
namespace {

uint32_t shares_of(const Job& job) {
  if (job.dedicated) return job.dedicated;
  return job.shares ? job.shares : job.workers;
}

std::vector<uint32_t> fans_of(const Job& job) {
  return job.fans.empty() ? std::vector<uint32_t>{std::max(1u, job.workers)} : job.fans;
}

void check(const Job& job, const Costs& costs, uint64_t blocks) {
  if (job.workers == 0) throw Error("a job has at least one rank");
  if (job.streams == 0) throw Error("an engine has at least one thread");
  if (!(job.loss >= 0 && job.loss < 1)) throw Error("a loss is a share from 0 to less than 1");
  if (job.bytes == 0) throw Error("a tensor has at least one byte");
  if (job.has.size() != 1 && job.has.size() != job.workers)
    throw Error("which blocks are not zero must be said of each rank, or of all at once");
  for (const auto& has : job.has)
    if (has.size() != blocks)
      throw Error("the tensor has " + std::to_string(blocks) + " blocks, not " +
                  std::to_string(has.size()));
  if (!job.late_s.empty() && job.late_s.size() != job.workers)
    throw Error("when it begins must be said of each rank, or of none");
  if (job.goal && (job.loss > 0 || costs.cores > 0 || costs.core_rate > 0))
    throw Error(
        "a schedule in GOAL knows neither lost datagrams, nor a core of the network, nor "
        "processors that hosts share");
}

// The tensor's shape, with blocks of one number.
Shape shape_of(const Job& job) {
  const uint64_t count = (job.bytes + 3) / 4;
  Shape shape = Shape::fit(count, DType::f32, job.block_bytes / 4, shares_of(job), job.slots,
                           job.message_bytes);
  shape.count = shape.blocks();
  shape.dtype = DType::i32;
  shape.block_size = 1;
  return shape;
}

}  // namespace

World::World(const Job& j, const Costs& c, const Layout& l)
    : job(j),
      costs(c),
      layout(l),
      seats(j.workers, j.dedicated, fans_of(j)),
      network(c, j.workers + j.dedicated, j.streams),
      expected(l.blocks()) {
  if (j.goal) goal.emplace(hosts(), j.streams);
  if (j.loss > 0) datagrams.emplace(network, c, j.loss, j.seed, j.streams);
}

Outcome simulate(const Job& job, const Costs& costs, const Progress& progress) {
  const Layout layout(shape_of(job));
  check(job, costs, layout.blocks());
  World world(job, costs, layout);
  for (uint32_t worker = 0; worker < job.workers; ++worker) {
    const auto& has = job.has.size() == 1 ? job.has[0] : job.has[worker];
    for (uint64_t block = 0; block < has.size(); ++block) world.expected[block] += has[block];
  }
  for (const Number ranks : world.expected) world.outcome.union_blocks += ranks > 0;
  const uint64_t to_write = std::max<uint64_t>(1, world.outcome.union_blocks * job.workers);
  world.outcome.done_s.assign(job.workers, 0);
  std::vector<std::unique_ptr<EngineThread>> all;
  for (uint32_t host = 0; host < world.hosts(); ++host)
    for (uint32_t stream = 0; stream < job.streams; ++stream)
      all.push_back(std::make_unique<EngineThread>(world, all, host, stream));
  for (uint32_t thread = 0; thread < job.workers * job.streams; ++thread)
    world.network.at(job.late_s.empty() ? 0 : job.late_s[thread / job.streams],
                     [begun = all[thread].get()] { begun->begin(); });
  Outcome& outcome = world.outcome;
  outcome.events = world.network.run([&] { progress(double(world.written) / double(to_write)); });
  for (uint32_t thread = 0; thread < all.size(); ++thread)
    if (!all[thread]->done())
      throw Error("simulated: rank " + std::to_string(thread / job.streams) + " waits for ever");
  outcome.seconds = *std::max_element(outcome.done_s.begin(), outcome.done_s.end());
  if (world.datagrams) {
    outcome.datagrams = world.datagrams->sent();
    outcome.again = world.datagrams->again();
  }
  for (uint32_t host = 0; host < world.hosts(); ++host) {
    outcome.bytes += world.network.sent_bytes(host);
    outcome.most_bytes = std::max(outcome.most_bytes, world.network.sent_bytes(host));
  }
  for (const auto& thread : all)
    outcome.most_peers = std::max(outcome.most_peers, uint32_t(thread->peers()));
  if (world.goal) outcome.goal = world.goal->text();
  return outcome;
}

}  // namespace omnihvd::simulation
