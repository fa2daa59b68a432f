// Engine, Group and AggregatorHost: the progress threads of a process, and the groups on them.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/own_process.h"
#include "base/plugin.h"
#include "engine/agreement.h"
#include "engine/collective.h"
#include "engine/on_all_ranks.h"
#include "engine/rendezvous.h"
#include "engine/session.h"
#include "engine/stream.h"
#include "engine/until_done.h"
#include "transport/registry.h"

namespace omnihvd {
namespace {

// Threads begin with their creator's signal mask. A signal to the process is for the program's own
// threads, which may have blocked it to wait for it; not so faults of the thread itself, and
// profiles.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
      sigdelset(&all, own);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

class Threads {
 public:
  Threads(const Settings& settings, const Engine::TransportFactory& factory) {
    const SignalsBlocked blocked;  // in these threads
    for (uint32_t i = 0; i < settings.streams; ++i)
      streams_.push_back(std::make_unique<Stream>(factory(), settings.spin_us));
  }
  // A forked child has no thread to end: it leaves the copies of these objects alone.
  ~Threads() {
    for (auto& stream : streams_)
      if (!process_.is_this()) static_cast<void>(stream.release());
  }
  Stream& of(uint32_t stream) {
    process_.check();
    return *streams_[stream % streams_.size()];
  }
  std::vector<std::string> addresses() const {
    process_.check();
    std::vector<std::string> all;
    for (const auto& stream : streams_) all.push_back(stream->address());
    return all;
  }
  const std::string& description() const { return streams_[0]->description(); }
  bool have_lost_a_peer() const {
    return std::any_of(streams_.begin(), streams_.end(),
                       [](const auto& stream) { return stream->has_lost_a_peer(); });
  }

  bool have_groups() {
    bool any = false;
    for (const auto& stream : streams_)
      stream->run([&] { any = any || stream->groups().has_groups(); });
    return any;
  }

  // Creates this process's parts of a group. Throws Error, and then leaves nothing behind.
  std::vector<std::shared_ptr<GroupStream>> add(std::shared_ptr<const GroupInfo> info,
                                                uint32_t self, GroupStream::Failed failed) {
    std::vector<std::shared_ptr<GroupStream>> parts(info->settings.streams);
    try {
      for (uint32_t i = 0; i < parts.size(); ++i) {
        Stream& stream = of(i);
        stream.run(
            [&] { parts[i] = stream.groups().join(info, self, i, stream.transport(), failed); });
      }
    } catch (...) {
      remove(parts);
      throw;
    }
    return parts;
  }

  void remove(const std::vector<std::shared_ptr<GroupStream>>& parts) {
    if (!process_.is_this()) return;
    for (uint32_t i = 0; i < parts.size(); ++i)
      if (parts[i])
        of(i).post([&groups = of(i).groups(), part = parts[i]] { groups.remove(part); });
  }

  void remove_now(const std::vector<std::shared_ptr<GroupStream>>& parts) {
    for (uint32_t i = 0; i < parts.size(); ++i)
      of(i).run([&groups = of(i).groups(), part = parts[i]] { groups.remove(part); });
  }

 private:
  const OwnProcess process_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

namespace {

// Why a group has failed. Any thread.
class Failure {
 public:
  void set(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

class GroupImpl : public Group {
 public:
  GroupImpl(std::shared_ptr<Threads> threads, std::shared_ptr<const GroupInfo> info, int rank)
      : threads_(std::move(threads)), info_(std::move(info)), rank_(rank) {
    parts_ = threads_->add(info_, uint32_t(rank), [failure = failure_](const std::string& reason) {
      log(LogLevel::debug, "a group has failed: ", reason);
      failure->set(reason);
    });
  }
  ~GroupImpl() override {
    if (!left_) threads_->remove(parts_);
  }

  void all_listen() {
    for (uint32_t i = 0; i < parts_.size(); ++i)
      threads_->of(i).post([part = parts_[i]] { part->all_listen(); });
  }

  int rank() const override { return rank_; }
  int size() const override { return int(info_->workers); }

  uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype,
                     const Codec& codec) override {
    const auto make = [in, out, rank = uint32_t(rank_)](const Layout& layout) {
      return std::make_unique<HostTensor>(layout, in, out, rank);
    };
    // The order of calls is the order of their places.
    return until_done(
        [&](Done done) { reduce(reserve(), count, dtype, make, std::move(done), codec, 0); });
  }

  uint64_t reserve() override { return ++sequence_; }

  void reduce(uint64_t place, uint64_t count, DType dtype, MakeTensor make, Done done,
              const Codec& codec, uint32_t block_size) override {
    if (block_size > 0 && Arithmetic::of(info_->settings.arithmetic, dtype, info_->workers))
      throw Error(std::string("OMNIHVD_ARITHMETIC=") + name_of(info_->settings.arithmetic) +
                  " sums no lists of " + name_of(dtype) + " blocks: unset it");
    start({collective(place, info_->shape_of(count, dtype, codec, Shape::kAll, block_size),
                      std::move(make), std::move(done))});
  }

  uint64_t reduce_scatter(const void* in, void* out, const std::vector<uint64_t>& shares,
                          DType dtype, const Codec& codec) override {
    if (!can_scatter())
      throw Error("aggregators that are dedicated or have levels cannot reduce-scatter");
    if (shares.size() != info_->workers)
      throw Error("a reduce-scatter needs one share for each rank");
    const auto given =
        size_t(std::count_if(shares.begin(), shares.end(), [](uint64_t n) { return n > 0; }));
    if (given == 0) return 0;
    if (counted_) stats().calls += 1;
    return until_done([&](Done done) {
      const auto parts = std::make_shared<CollectiveParts>(given, count_failure(std::move(done)));
      std::vector<std::shared_ptr<Collective>> reduces;
      const auto* at = static_cast<const uint8_t*>(in);
      for (uint32_t owner = 0; owner < shares.size(); at += shares[owner++] * size_of(dtype)) {
        if (shares[owner] == 0) continue;
        const auto make = [at, out = owner == uint32_t(rank_) ? out : nullptr,
                           rank = uint32_t(rank_)](const Layout& layout) {
          return std::make_unique<HostTensor>(layout, at, out, rank);
        };
        // Block numbers start anew in each part, so each part needs other random numbers.
        Codec of_part = codec;
        if (codec.lossy()) of_part.seed = codec.of_part(owner).seed;
        reduces.push_back(collective(
            reserve(), info_->shape_of(shares[owner], dtype, of_part, owner), make,
            [parts](const std::string* why, uint64_t united) { parts->end(why, united); }));
      }
      start(std::move(reduces));
    });
  }

  bool can_scatter() const override { return info_->all_are_peers(); }

  void set_timeout(double seconds) override {
    for (const auto& part : parts_) part->set_timeout(seconds);
  }

  void set_elsewhere(const std::string& what) override {
    for (const auto& part : parts_) part->set_elsewhere(what);
  }

  void fail(const std::string& why) override {
    for (uint32_t i = 0; i < parts_.size() && !left_; ++i)
      threads_->of(i).post([part = parts_[i], why] { part->fail(why, true); });
  }

  std::string failure() const override { return failure_->get(); }

  void set_uncounted() override { counted_ = false; }

  void leave() override {
    if (!left_.exchange(true)) threads_->remove_now(parts_);
  }

 private:
  std::shared_ptr<Collective> collective(uint64_t place, const Shape& shape, MakeTensor make,
                                         Done done) const {
    return std::make_shared<Collective>(place, shape, info_->workers, info_->settings.streams,
                                        std::move(make), std::move(done), counted_);
  }

  void start(std::vector<std::shared_ptr<Collective>> collectives) {
    for (uint32_t i = 0; i < parts_.size(); ++i)
      threads_->of(i).post([part = parts_[i], collectives] {
        for (const auto& collective : collectives) part->start(collective);
      });
  }

  Done count_failure(Done done) const {
    return [done = std::move(done), counted = counted_.load()](const std::string* why,
                                                               uint64_t united) {
      if (why && counted) stats().failures += 1;
      done(why, united);
    };
  }

  const std::shared_ptr<Threads> threads_;
  const std::shared_ptr<const GroupInfo> info_;
  const int rank_;
  std::atomic<bool> left_{false}, counted_{true};
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::vector<std::shared_ptr<GroupStream>> parts_;
  std::atomic<uint64_t> sequence_{0};
};

void load_arithmetic(const GroupInfo& info) {
  if (info.settings.arithmetic != ArithmeticKind::floats) load_part("innetwork");
}

std::mutex process_mutex;
std::shared_ptr<Engine>& process_slot() {
  // Never destroyed: its threads must not outlive what they use, not even at exit.
  static auto* slot = new std::shared_ptr<Engine>;
  return *slot;
}

}  // namespace

Engine::TransportFactory Engine::transports_of(const Settings& settings) {
  return [name = settings.transport, options = transport_options(settings)] {
    return make_transport(name, options);
  };
}

Engine::Engine(const Settings& settings, TransportFactory factory)
    : settings_(settings),
      factory_(std::move(factory)),
      threads_(std::make_shared<Threads>(settings_, factory_)) {
  set_log_level(settings.log);
}

std::shared_ptr<Group> Engine::join(Exchange& exchange, const Settings& settings) {
  const std::shared_ptr<Threads> threads = sound_threads();
  const Node self{host_name(settings), threads->addresses()};
  const auto info = agree_on_group(exchange, self, settings);
  std::shared_ptr<GroupImpl> group;
  // No rank may send before all ranks listen.
  contents_of(exchange.allgather(words_of(self, [&] {
    load_arithmetic(*info);
    group = std::make_shared<GroupImpl>(threads, info, exchange.rank());
    return std::string();
  })));
  group->all_listen();
  const uint32_t levels = info->seats->levels();
  log(LogLevel::info, "joined a group of ", info->workers, " ranks and ",
      info->dedicated() ? info->dedicated() : info->workers,
      info->dedicated() ? " dedicated" : " colocated", " aggregators on ", levels,
      levels > 1 ? " levels" : " level");
  return group;
}

std::string Engine::describe_transport() const {
  const std::lock_guard lock(mutex_);
  return threads_->description();
}

// A transport that has lost a peer is not used for new groups (transport.h): the peer may have
// died while it wrote into our memory, and what others write there would wait behind it for ever.
std::shared_ptr<Threads> Engine::sound_threads() {
  const std::lock_guard lock(mutex_);
  if (threads_->have_lost_a_peer()) threads_ = std::make_shared<Threads>(settings_, factory_);
  return threads_;
}

AggregatorHost::AggregatorHost(const Settings& settings, Engine::TransportFactory factory)
    : settings_(settings), factory_(std::move(factory)) {
  set_log_level(settings.log);
  threads_.push_back(std::make_shared<Threads>(settings_, factory_));
}

std::vector<std::string> AggregatorHost::addresses() {
  const std::lock_guard lock(mutex_);
  if (threads_.back()->have_lost_a_peer()) {
    // As in an engine. The last threads stay, since a group may be about to use them.
    const auto unused = [](const auto& threads) { return !threads->have_groups(); };
    threads_.erase(std::remove_if(threads_.begin(), threads_.end() - 1, unused),
                   threads_.end() - 1);
    threads_.push_back(std::make_shared<Threads>(settings_, factory_));
    log(LogLevel::info, "a worker was lost: new groups get new threads");
  }
  return threads_.back()->addresses();
}

void AggregatorHost::admit(const std::string& description, const std::string& secret) {
  BytesReader in(description);
  const uint64_t self = in.u64();
  auto info = std::make_shared<GroupInfo>(GroupInfo::unpack(description.substr(8)));
  if (self < info->workers || self >= info->nodes.size())
    throw Error("malformed description of a group: no such aggregator");
  if (settings_.encrypt && !info->settings.encrypt)
    throw Error(
        "OMNIHVD_ENCRYPT=1 is set here, and not on the job's ranks: set it alike everywhere");
  load_arithmetic(*info);
  info->key = group_key(secret, info->id);
  const std::lock_guard lock(mutex_);  // addresses() must not end these threads meanwhile
  threads_of(info->nodes[self].addresses)
      .add(info, uint32_t(self), [workers = info->workers](const std::string& reason) {
        log(LogLevel::warning, "a group of ", workers, " workers has failed: ", reason);
      });
  log(LogLevel::info, "sums for a group of ", info->workers, " workers");
}

Threads& AggregatorHost::threads_of(const std::vector<std::string>& addresses) {
  for (const auto& threads : threads_)
    if (threads->addresses() == addresses) return *threads;
  throw Error("the addresses that this group was given are no longer used: try again");
}

std::shared_ptr<Engine> process_engine() {
  std::lock_guard lock(process_mutex);
  if (!process_slot()) {
    const Settings settings = settings_from_environment();
    process_slot() = std::make_shared<Engine>(settings, Engine::transports_of(settings));
  }
  return process_slot();
}

std::shared_ptr<Engine> process_engine(Exchange& exchange) {
  std::shared_ptr<Engine> engine;
  start_on_all_ranks(exchange, [&] {
    engine = process_engine();
    engine->renew();
  });
  return engine;
}

void stop_process_engine() {
  std::lock_guard lock(process_mutex);
  process_slot().reset();
}

}  // namespace omnihvd
