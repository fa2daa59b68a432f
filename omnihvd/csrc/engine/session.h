// The engine's interface to the shims and the Python module.
//
// Engine: the progress threads and connections of this process. Group: the ranks of one
// communicator; it holds the threads, and may outlive the engine. Any thread may call these
// functions, but all ranks of a group must call its collectives in the same order, one at a time.
// All failures are Error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/settings.h"
#include "engine/stats.h"
#include "numeric/codec.h"
#include "numeric/dtype.h"
#include "protocol/tensor.h"
#include "transport/transport.h"

namespace omnihvd {

// The out-of-band allgather by which the ranks of a new group reach each other before there is a
// connection: over MPI, NCCL, or whatever backend the shim intercepts. Trusted: the job's secret
// passes through it.
class Exchange {
 public:
  explicit Exchange(int rank = -1, int size = 0) : rank_(rank), size_(size) {}
  virtual ~Exchange() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Collective; returns every rank's bytes, in rank order. Throws Error.
  virtual std::vector<std::string> allgather(const std::string& mine) = 0;
  // Sets how long to wait for others, and when to warn. Called before the first allgather with this
  // process's settings, then with those that the ranks have agreed on.
  virtual void wait_as(const Settings&) {}

 protected:
  int rank_, size_;
};

class Group {
 public:
  // Leaves the group, in the background. Peers see a departure; if a collective is in progress
  // here, it fails, on all ranks.
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // out = the sum of all ranks' in, in host memory; in == out is in place, other overlap is not
  // allowed. Returns once out is complete; throws Error if a peer failed or timed out, and out is
  // then undefined. Once a group has failed it stays failed, and each call throws at once.
  // Returns how many blocks were non-zero on any rank, the same on all ranks.
  // codec: the same on all ranks, and one that takes the dtype: blocks travel in its form.
  virtual uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype,
                             const Codec& codec = {}) = 0;

  // out = this rank's share of the sum of all ranks' in. `in` holds the shares one after another:
  // rank r gets shares[r] elements, and `shares` is the same on all ranks. out may be this rank's
  // share of `in`; other overlap is not allowed. Throws Error unless can_scatter().
  virtual uint64_t reduce_scatter(const void* in, void* out, const std::vector<uint64_t>& shares,
                                  DType dtype, const Codec& codec = {}) = 0;
  // True if ranks aggregate, on one level.
  virtual bool can_scatter() const = 0;

  // An allreduce in two steps, for tensors that are not in host memory, or not ready yet. reserve()
  // takes the next place in the group's order of collectives; all ranks must call it in the same
  // order. reduce() begins, later, in any order and from any thread. Each place must be used. Each
  // progress thread that carries a part calls `make`; one of them calls `done`, which must be short
  // (null: success, else the failure's message, valid during the call; and the blocks non-zero on
  // any rank). block_size: of the layout, in elements; 0: OMNIHVD_BLOCK_SIZE.
  using Done = std::function<void(const std::string* failure, uint64_t united_blocks)>;
  using MakeTensor = std::function<std::unique_ptr<Tensor>(const Layout&)>;
  virtual uint64_t reserve() = 0;
  virtual void reduce(uint64_t place, uint64_t count, DType dtype, MakeTensor make, Done done,
                      const Codec& codec = {}, uint32_t block_size = 0) = 0;

  // The time-out for collectives from now on, and for those in progress; 0: none. Any thread.
  virtual void set_timeout(double seconds) = 0;

  // Tells what this rank does while the others expect a collective of this group ("which is in
  // ..."); empty: nothing. Appears in messages when a collective waits for this rank.
  virtual void set_elsewhere(const std::string& what) = 0;

  // fail: fails the group, on all ranks, with these words, as if a peer had died. failure: why it
  // has failed; empty: it has not.
  virtual void fail(const std::string& why) = 0;
  virtual std::string failure() const = 0;

  // Its collectives are not the caller's sums: statistics do not count them from now on.
  virtual void set_uncounted() = 0;

  // Leaves now: once it returns, no progress thread touches a tensor any more, and collectives in
  // progress have failed, or are about to. Later collectives fail. Not from a progress thread.
  virtual void leave() = 0;
};

class Threads;  // the progress threads of a process

class Engine {
 public:
  using TransportFactory = std::function<std::unique_ptr<Transport>()>;
  static TransportFactory transports_of(const Settings& settings);
  Engine(const Settings& settings, TransportFactory factory);

  // Collective over the exchange. Creates the group, its connections and, for colocated
  // aggregators, this rank's share of them. settings: agreed on by its ranks before.
  std::shared_ptr<Group> join(Exchange& exchange, const Settings& settings);

  // Makes new progress threads, for groups to come, if these have lost a peer. join() does so, too,
  // but the other ranks then wait in the exchange if this one cannot. Throws Error.
  void renew() { sound_threads(); }

  const Settings& settings() const { return settings_; }  // the settings it was made with
  std::string describe_transport() const;

 private:
  std::shared_ptr<Threads> sound_threads();

  const Settings settings_;
  const TransportFactory factory_;
  mutable std::mutex mutex_;
  std::shared_ptr<Threads> threads_;  // groups share them, and may outlive the engine
};

// A dedicated aggregator's process: an engine that sums for the groups it admits.
class AggregatorHost {
 public:
  AggregatorHost(const Settings& settings, Engine::TransportFactory factory);

  // One address per progress thread, for the next group; after the loss of a peer, those of new
  // threads.
  std::vector<std::string> addresses();
  // Begins to sum for a group. `description` is the u64 number of our node in it, then
  // GroupInfo::pack(). The caller has verified that it comes from a holder of the secret. The group
  // ends by itself once its workers have left. Throws Error.
  void admit(const std::string& description, const std::string& secret);

 private:
  Threads& threads_of(const std::vector<std::string>& addresses);

  const Settings settings_;
  const Engine::TransportFactory factory_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Threads>> threads_;  // the last ones are for new groups
};

// The engine of this process: settings from the environment, UCX; made at the first call. Stopped
// by stop_process_engine(), or never: its threads sleep when idle.
std::shared_ptr<Engine> process_engine();
// Collective. The same; if a rank cannot make it, all ranks throw an Error that names the rank.
std::shared_ptr<Engine> process_engine(Exchange& exchange);
void stop_process_engine();

}  // namespace omnihvd
