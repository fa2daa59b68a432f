#include "nccl/group.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "algorithms/host_grid.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/on_all_ranks.h"

namespace omnihvd {
namespace {

// The returned lock is not held if another thread keeps the mutex for a second.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
  for (int i = 0; i < 1000 && !lock.try_lock(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return lock;
}

}  // namespace

NcclGroup::~NcclGroup() {
  if (host_abort_.joinable()) host_abort_.detach();
  if (union_) new auto(union_);
  exchange_.give_up();
}

void NcclGroup::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (!failure_.empty()) return;
  failure_ = why;
  log(aborted_ ? LogLevel::debug : LogLevel::error, "ncclAllReduce failed: ", why);
}

std::string NcclGroup::failure() {
  if (const auto grid = std::atomic_load(&grid_)) {
    if (const NcclResult error = grid->async_error(); is_error(error))
      fail(std::string("NCCL inside this host, or between those with its place in others: ") +
           nccl().error_string(error));
  }
  if (const auto way = std::atomic_load(&union_))
    if (const std::string why = way->lost(); !why.empty()) fail(why);
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void NcclGroup::or_fail_for_good(const std::function<void()>& work) {
  const std::lock_guard<std::mutex> lock(calls_);
  if (const std::string why = failure(); !why.empty()) throw Error(why);
  try {
    if (aborted_) throw Error("the communicator was aborted");
    const CudaScope scope(exchange_.context());
    work();
  } catch (const std::exception& error) {
    interrupt(error.what());
    throw;
  }
}

// --- bootstrap ----------------------------------------------------------------------------------

void NcclGroup::begin(const std::vector<Begun>& all) {
  std::vector<std::thread> threads;
  for (const Begun& one : all) {
    NcclGroup& group = *one.group;
    std::string greeting;
    if (!group.agreed_) greeting = group.terms_.greet(group.exchange_);  // knows this thread's way
    const auto work = [&group, greeting, bytes = one.bytes] {
      if (!group.agreed_) group.agree(greeting);
      const bool sums = group.failure().empty() && group.refusal(bytes) == Reason::none;
      if (sums && !group.connected_) group.connect();
    };
    if (all.size() == 1) return work();
    threads.emplace_back([&group, work] {
      // NCCL restores the thread's device; without one that would be the first.
      std::optional<CudaScope> scope;
      try {
        scope.emplace(group.exchange_.context());
      } catch (const Error&) {  // agree() tells the others
      }
      work();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each rank takes all steps, whatever it learns on the way: the others depend on it.
void NcclGroup::agree(const std::string& greeting) {
  const std::lock_guard<std::mutex> lock(calls_);
  const auto step = [&](const std::string& mine, const auto& read) {
    const std::vector<std::string> said = exchange_.allgather(mine);
    try {
      read(said);
    } catch (const Error& error) {
      fail(error.what());
    }
  };
  try {
    step(greeting, [this](const auto& said) { terms_.read_greetings(said, exchange_.rank()); });
    step(terms_.prepare(exchange_, !failure().empty()),
         [this](const auto& said) { terms_.read_obstacles(said, exchange_); });
  } catch (const std::exception& error) {
    fail(error.what());
  }
  agreed_ = true;
}

// --- connecting

void NcclGroup::connect() {
  try {
    or_fail_for_good([this] { connect_union(); });
  } catch (const std::exception&) {  // kept
  }
  connected_ = true;
}

// If the two levels cannot be made, the sums use one level: that is no failure.
Hierarchy NcclGroup::make_levels() {
  if (terms_.settings().hierarchy != Hierarchy::on) return Hierarchy::off;
  const char* obstacle = grid_obstacle(terms_.hosts());
  if (!terms_.can_part()) obstacle = "this NCCL has no ncclCommInitRankConfig (2.14 has)";
  std::string why = obstacle == nullptr ? "" : obstacle;
  if (why.empty()) {
    std::atomic_store(&grid_, std::make_shared<NcclGrid>(rank(), terms_.hosts()));
    why = grid_->make(exchange_);
    if (why.empty()) return Hierarchy::on;
  }
  if (rank() != 0) return Hierarchy::off;
  static std::once_flag once;
  std::call_once(once, [&] {
    log(LogLevel::warning, "the ", size(),
        " ranks of a communicator sum without reducing inside the hosts first: ", why);
  });
  return Hierarchy::off;
}

// If any rank has an obstacle, NCCL makes all calls of the communicator on all ranks.
void NcclGroup::connect_union() {
  Settings agreed = terms_.settings();
  agreed.aggregators.clear();
  agreed.hierarchy = make_levels();
  std::shared_ptr<UnionWay> way;
  std::shared_ptr<Engine> engine;
  // Kept if a later step fails: freeing it would wait for the device, which may then wait for ever.
  const auto make = [&] {
    // Never destroyed: the last owner of a group may be a progress thread, which cannot end its own
    // engine.
    static const auto& kept = *new std::shared_ptr<Engine>(process_engine());
    engine = kept;
    way = std::make_shared<UnionWay>(agreed, size(), terms_.number_of_hosts(), rank(),
                                     terms_.kernels(),
                                     agreed.hierarchy == Hierarchy::off ? nullptr : grid_);
    std::atomic_store(&union_, way);
  };
  if (const std::string why = on_all_ranks(exchange_, make); !why.empty())
    return leave_to_nccl(Reason::memory, why);
  way->steps().connect(exchange_);
  const std::string wrong = way->steps().try_out(exchange_, rank());
  const auto say = [&] {
    if (!wrong.empty()) throw Error(wrong);
  };
  if (const std::string why = on_all_ranks(exchange_, say); !why.empty())
    return leave_to_nccl(Reason::kernels, why);
  way->begin(engine->join(exchange_, agreed));
}

void NcclGroup::leave_to_nccl(Reason reason, const std::string& why) {
  terms_.refuse(reason);
  if (rank() == 0) log(LogLevel::warning, "a communicator is left to NCCL; ", why);
}

// --- leaving

void NcclGroup::leave() {
  if (host_abort_.joinable()) host_abort_.join();  // it was shrunk
  const std::lock_guard<std::mutex> lock(calls_);
  const CudaScope scope(exchange_.context());
  const bool free = free_memory();
  if (const auto grid = std::atomic_load(&grid_)) free ? grid->destroy() : grid->abort();
}

// Returns false if the memory is given up instead, because it may still be in use, or because
// freeing it would wait for that use.
bool NcclGroup::free_memory() {
  bool free = exchange_.idle();
  if (const auto way = std::atomic_load(&union_)) {
    free = way->finish() && free;
    if (!free) new auto(way);
    std::atomic_store(&union_, std::shared_ptr<UnionWay>());
  }
  if (!free) {
    log(LogLevel::warning, "a communicator that failed still uses its memory, which is given up");
    exchange_.give_up();
    return false;
  }
  exchange_.release();
  return true;
}

void NcclGroup::interrupt(const std::string& why) {
  fail(why);
  if (const auto way = std::atomic_load(&union_)) way->interrupt(!aborted_);
}

void NcclGroup::abort_host() {
  if (const auto grid = std::atomic_load(&grid_); grid && !host_abort_.joinable())
    host_abort_ = std::thread([grid] { grid->abort(); });
}

NcclResult NcclGroup::abort(const std::function<NcclResult()>& abort_nccl) {
  aborted_ = true;
  interrupt("the communicator was aborted");
  // A thread in a call sees the abort soon. If NCCL or CUDA blocks it, aborting NCCL frees it.
  lock_soon(calls_);
  abort_host();
  return abort_nccl();
}

void NcclGroup::reclaim() {
  if (host_abort_.joinable()) host_abort_.join();
  const std::unique_lock<std::mutex> lock = lock_soon(calls_);
  if (!lock.owns_lock()) return;
  const CudaScope scope(exchange_.context());
  free_memory();
}

}  // namespace omnihvd
