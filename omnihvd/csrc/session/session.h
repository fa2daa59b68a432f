// What the shims and the Python module see of the engine.
//
// Engine: the threads and connections of this process. Group: the ranks of one communicator.
// The engine outlives its groups (each Group holds it). Functions may be called from any thread,
// but the collectives of one group must be called in the same order on all its ranks, one at a
// time. All failures are Error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/codec.h"
#include "protocol/dtype.h"
#include "protocol/tensor.h"
#include "session/settings.h"
#include "session/stats.h"
#include "transport/transport.h"

namespace omnihvd {

// How the ranks of a new group reach each other before there is a connection: over MPI, NCCL, or
// whatever the shim stands in for. Trusted: the job's secret passes through it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Collective; returns every rank's bytes, in rank order. Throws Error.
  virtual std::vector<std::string> allgather(const std::string& mine) = 0;
  // How long to wait for others, and when to warn: called before the first allgather with this
  // process's settings, then with those on which the ranks have agreed.
  virtual void wait_as(const Settings&) {}
};

class Group {
 public:
  // Leaves the group, in the background. Peers see a departure; if a collective is under way here,
  // it fails, on all ranks.
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // out = the sum of all ranks' in; in == out is in place, other overlap is not allowed. Host
  // memory. Returns when out is complete; throws Error when a peer failed or timed out, and out is
  // then undefined. Once a group has failed it stays so, and each call throws at once.
  // Returns how many blocks were non-zero on any rank, the same on all ranks.
  // codec: the same on all ranks, and one that takes the dtype: blocks travel in its form.
  virtual uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype,
                             const Codec& codec = {}) = 0;

  // out = this rank's share of the sum of all ranks' in, whose elements are the shares, one behind
  // the other: shares[r] are of rank r, the same on all ranks. out may be where this rank's lie in
  // `in`; other overlap is not allowed. Only where can_scatter(): else throws Error.
  virtual uint64_t reduce_scatter(const void* in, void* out, const std::vector<uint64_t>& shares,
                                  DType dtype, const Codec& codec = {}) = 0;
  // Ranks aggregate, on one level.
  virtual bool can_scatter() const = 0;

  // An allreduce in two steps, for tensors that are not in host memory, or not ready yet: reserve()
  // takes the next place in the group's order of collectives, and must be called in the same order
  // on all ranks; reduce() begins, later, in any order and from any thread. Each place must be
  // used. `make` is called on each engine thread that carries a part; `done`, which must be short,
  // on one of them (null: success, else the failure's message, valid during the call; and the
  // blocks non-zero on any rank).
  using Done = std::function<void(const std::string* failure, uint64_t united_blocks)>;
  using MakeTensor = std::function<std::unique_ptr<Tensor>(const Layout&)>;
  virtual uint64_t reserve() = 0;
  virtual void reduce(uint64_t place, uint64_t count, DType dtype, MakeTensor make, Done done,
                      const Codec& codec = {}) = 0;

  // Of the collectives from now on, and of those under way; 0: none. Any thread.
  virtual void set_timeout(double seconds) = 0;

  // What this rank does meanwhile where the others expect a collective of this group ("which is in
  // ..."); empty: nothing. For what people are told when a collective waits for this rank.
  virtual void set_elsewhere(const std::string& what) = 0;

  // Fails the group, on all ranks, with these words, as when a peer has died. And why it has
  // failed; empty: it has not.
  virtual void fail(const std::string& why) = 0;
  virtual std::string failure() const = 0;

  // Its collectives are no sums of the caller's: statistics do not count them from now on.
  virtual void set_uncounted() = 0;

  // Leaves now: when it returns, no engine thread touches a tensor any more, and what was under way
  // has failed, or is about to. Later collectives fail. Not from an engine thread.
  virtual void leave() = 0;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  using TransportFactory = std::function<std::unique_ptr<Transport>()>;
  static TransportFactory transports_of(const Settings& settings);
  static std::shared_ptr<Engine> create(const Settings& settings, TransportFactory factory);
  virtual ~Engine() = default;

  // Collective over the exchange. Makes the group, its connections and, for colocated aggregators,
  // this rank's share of them. settings: what its ranks have agreed on before.
  virtual std::shared_ptr<Group> join(Exchange& exchange, const Settings& settings) = 0;

  virtual const Settings& settings() const = 0;  // that it was made with
  virtual std::string describe_transport() const = 0;
};

// The engine of this process: settings from the environment, UCX; made at the first call. Stopped
// by stop_process_engine(), or never: its threads sleep when idle.
std::shared_ptr<Engine> process_engine();
// Collective. The same; if a rank cannot make it, all throw an Error that names the rank.
std::shared_ptr<Engine> process_engine(Exchange& exchange);
void stop_process_engine();

}  // namespace omnihvd
