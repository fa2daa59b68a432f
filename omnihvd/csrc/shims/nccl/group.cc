#include "shims/nccl/group.h"

#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "session/group_info.h"
#include "shims/host_grid.h"
#include "shims/part_exchange.h"

namespace omnihvd {
namespace {

constexpr char kGreeting[] = "omnihvd-nccl-1";
constexpr double kPatience_s = 5;  // with what has failed

std::string host_name(const Settings& settings) {
  if (!settings.host_id.empty()) return settings.host_id;
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// Tells processes apart, also where containers number them alike.
const std::string& process_token() {
  static const std::string token = random_bytes(16);
  return token;
}

// Not held, if whoever holds the mutex keeps it for a second.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
  for (int i = 0; i < 1000 && !lock.try_lock(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return lock;
}

// Kept for good: the last to hold a group may be an engine thread, which cannot end its engine.
const std::shared_ptr<Engine>& engine() {
  static const auto& kept = *new std::shared_ptr<Engine>(process_engine());
  return kept;
}

thread_local std::optional<GpuWay> chosen_way;

// How many hardware queues the streams share, as far as somebody has said so; 0: nobody has.
int hardware_queues() {
  const char* const setting = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return setting == nullptr ? 0 : std::atoi(setting);
}
constexpr int kFewQueues = 8;  // CUDA's default

// Memory that may still be written to is never freed.
void give_up(const std::vector<std::shared_ptr<StagingSet>>& sets) { new auto(sets); }

}  // namespace

void choose_gpu_way(std::optional<GpuWay> way) { chosen_way = way; }

NcclGroup::NcclGroup(NcclComm comm) : comm_(comm), exchange_(comm, aborted_) {}

NcclGroup::~NcclGroup() {
  if (host_abort_.joinable()) host_abort_.detach();
  if (union_) new auto(union_);
  give_up(staging_.take_all());
  new PinnedMemory(std::move(probe_));
  exchange_.give_up();
}

void NcclGroup::fail(const std::string& why) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (!failure_.empty()) return;
  failure_ = why;
  log(aborted_ ? LogLevel::debug : LogLevel::error, "ncclAllReduce failed: ", why);
}

std::string NcclGroup::failure() {
  if (staging_.failed_on_host())
    fail("another rank of this host failed to reduce its part: see its message");
  if (const auto grid = std::atomic_load(&grid_)) {
    const NcclResult error = grid->async_error();
    if (error != NcclResult::success && error != NcclResult::in_progress)
      fail(std::string("NCCL inside this host: ") + nccl().error_string(error));
  }
  if (const auto way = std::atomic_load(&union_)) {
    const NcclResult error = way->async_error();
    if (error != NcclResult::success && error != NcclResult::in_progress)
      fail(std::string("NCCL, on the union of the blocks: ") + nccl().error_string(error));
  }
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void NcclGroup::or_fail_for_good(const std::function<void()>& work) {
  const std::lock_guard<std::mutex> lock(calls_);
  if (const std::string why = failure(); !why.empty()) throw Error(why);
  try {
    if (aborted_) throw Error("the communicator was aborted");
    work();
  } catch (const std::exception& error) {
    interrupt(error.what());
    throw;
  }
}

// --- what the ranks tell each other before all else ---------------------------------------------

void NcclGroup::agree(const std::vector<std::shared_ptr<NcclGroup>>& fresh) {
  std::vector<NcclExchange*> exchanges;
  std::vector<std::string> words;
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& group : fresh) {
    locks.emplace_back(group->calls_);
    exchanges.push_back(&group->exchange_);
    words.push_back(group->greet());
  }
  // Each rank takes all steps, whatever it learns on the way: the others count on it.
  const auto step = [&](void (NcclGroup::*read)(const std::vector<std::string>&)) {
    const auto said = NcclExchange::allgather(exchanges, words);
    for (size_t i = 0; i < fresh.size(); ++i) {
      try {
        (fresh[i].get()->*read)(said[i]);
      } catch (const Error& error) {
        fresh[i]->fail(error.what());
      }
    }
  };
  try {
    step(&NcclGroup::read_greetings);
    for (size_t i = 0; i < fresh.size(); ++i) words[i] = fresh[i]->prepare();
    step(&NcclGroup::read_obstacles);
  } catch (const Error& error) {
    for (const auto& group : fresh) group->fail(error.what());
  }
  for (const auto& group : fresh) group->agreed_ = true;
}

// What is wrong with this rank's settings (empty: nothing), and those on which all must agree.
std::string NcclGroup::greet() {
  std::string problem;
  try {
    settings_ = settings_from_environment();
  } catch (const Error& error) {
    problem = error.what();
  }
  exchange_.set_patience(settings_);
  static std::once_flag warned;
  if (const int queues = hardware_queues(); queues > 0 && queues < kFewQueues && settings_.enable)
    std::call_once(warned, [queues] {
      log(LogLevel::warning, "CUDA_DEVICE_MAX_CONNECTIONS=", queues,
          ": a stream that waits for a sum holds up all others of its hardware queue. Set it to "
          "32, "
          "if nothing else needs it so low");
    });
  BytesWriter out;
  out.text(kGreeting);
  out.text(problem);
  out.text(host_name(settings_));
  out.text(process_token());
  out.text(random_bytes(8));
  out.u64(settings_.enable);
  out.u64(settings_.gpu_min_bytes);
  out.u64(settings_.gpu_chunk_bytes);
  out.u64(chosen_way ? 1 + uint64_t(*chosen_way) : 0);
  out.u64(uint64_t(settings_.gpu));
  out.u64(settings_.aggregators.empty());
  out.text(pack_agreed(settings_));
  return out.bytes();
}

void NcclGroup::read_greetings(const std::vector<std::string>& greetings) {
  std::set<std::string> processes;
  uint64_t chosen = 0;
  for (size_t rank = 0; rank < greetings.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    BytesReader in(greetings[rank]);
    if (in.text() != kGreeting)
      throw Error(who + " uses another version of omnihvd: install the same one on all hosts");
    if (const std::string problem = in.text(); !problem.empty()) throw Error(who + ": " + problem);
    hosts_.push_back(in.text());
    if (!processes.insert(in.text()).second) refusal_ = "several ranks in a process";
    const std::string order = in.text();
    const bool enable = in.u64() != 0;
    const uint64_t min_bytes = in.u64(), chunk_bytes = in.u64();
    const uint64_t choice = in.u64(), way = in.u64();
    if (rank > 0) {
      if (choice != chosen)
        throw Error(who + " has chosen another way for this communicator than rank 0");
      continue;
    }
    order_ = order;
    settings_.enable = enable;
    settings_.gpu_min_bytes = min_bytes;
    settings_.gpu_chunk_bytes = chunk_bytes;
    chosen = choice;
    settings_.gpu = static_cast<GpuWay>(choice != 0 ? choice - 1 : way);
    colocated_ = in.u64() != 0;
    unpack_agreed(in.text(), &settings_);
  }
  if (!refusal_.empty()) return;
  if (settings_.gpu == GpuWay::original) refusal_ = "original";
  // NVLink is ten times as fast as the host's memory.
  if (std::set<std::string>(hosts_.begin(), hosts_.end()).size() == 1) refusal_ = "one host";
}

// What stands in this rank's way: a word and a sentence (empty: nothing).
std::string NcclGroup::prepare() {
  std::string word, why;
  if (failure().empty() && refusal_.empty() && settings_.enable) {
    try {
      const CudaScope scope(exchange_.context());
      word = "driver";
      // Works on all devices if the driver has it; still, this is not the time to find out late.
      if (cuda().stream_wait_value32 == nullptr)
        throw Error("the CUDA driver is older than 11.7, and lacks cuStreamWaitValue32_v2");
      probe_ = PinnedMemory(sizeof(uint32_t));
      *reinterpret_cast<uint32_t*>(probe_.data()) = 0;
      check_cuda(cuda().stream_wait_value32(exchange_.stream(), probe_.address(), 0,
                                            kCuWaitGreaterOrEqual),
                 "cuStreamWaitValue32");
      if (settings_.gpu != GpuWay::stream && hardware_queues() == 1) {
        word = "queues";
        throw Error(
            "CUDA_DEVICE_MAX_CONNECTIONS=1: a stream that waits would hold up those that it waits "
            "for");
      }
      word = "kernels";
      kernels_.emplace(exchange_.device(), settings_.block_size, settings_.kernel_cache);
      word = "";
    } catch (const Error& error) {
      why = error.what();
    }
  }
  BytesWriter out;
  out.text(word);
  out.text(why);
  out.u64(nccl().comm_split != nullptr);
  return out.bytes();
}

void NcclGroup::read_obstacles(const std::vector<std::string>& obstacles) {
  can_split_ = true;
  for (size_t r = 0; r < obstacles.size(); ++r) {
    BytesReader in(obstacles[r]);
    const std::string word = in.text(), why = in.text();
    can_split_ = can_split_ && in.u64() != 0;
    if (word.empty() || !refusal_.empty()) continue;
    refusal_ = word;
    if (rank() == 0)
      log(LogLevel::warning, "a communicator of ", size(), " ranks is left to NCCL; rank ", r, ": ",
          why);
  }
  if (can_split_ || settings_.gpu == GpuWay::stream) return;
  settings_.gpu = GpuWay::stream;
  if (rank() == 0)
    log(LogLevel::warning, "sums on GPUs are streamed: NCCL has no ncclCommSplit (2.18 has)");
}

const char* NcclGroup::refusal(uint64_t bytes) const {
  if (!settings_.enable) return "disabled";
  if (!refusal_.empty()) return refusal_.c_str();
  return bytes < settings_.gpu_min_bytes ? "small" : nullptr;
}

// --- connecting

void NcclGroup::connect() {
  try {
    or_fail_for_good(
        [this] { settings_.gpu == GpuWay::stream ? connect_streams() : connect_union(); });
  } catch (const std::exception&) {  // kept
  }
  connected_ = true;
}

// NCCL forbids to split a communicator that has something under way. When its ranks have exchanged
// something over it, whatever was called before has been done.
void NcclGroup::connect_union() {
  const bool one_each = std::set<std::string>(hosts_.begin(), hosts_.end()).size() == hosts_.size();
  const CudaScope scope(exchange_.context());
  std::shared_ptr<UnionWay> way;
  std::string why;
  try {
    const auto failed = [group = weak_from_this()](const std::string& reason) {
      if (const auto self = group.lock()) self->fail(reason);
    };
    way = std::make_shared<UnionWay>(settings_, Network{size(), one_each, 0}, rank(),
                                     exchange_.context(), *kernels_, failed);
  } catch (const Error& error) {
    why = error.what();
  }
  const std::vector<std::string> answers = exchange_.allgather(why);
  for (size_t other = 0; other < answers.size(); ++other) {
    if (answers[other].empty()) continue;
    refusal_ = "memory";
    if (rank() == 0)
      log(LogLevel::warning, "a communicator is left to NCCL; rank ", other, ": ", answers[other]);
    return;
  }
  way->connect(comm_, aborted_);
  std::atomic_store(&union_, way);
}

void NcclGroup::connect_streams() {
  choose_levels();
  std::shared_ptr<Levels> levels;
  if (!grid_) {
    levels = one_level(engine()->join(exchange_));
  } else {
    const auto between = join_part(grid_->across());
    levels = settings_.compress_first ? compress_first(join_part(grid_->inside()), between)
                                      : one_level(between);
  }
  std::atomic_store(&levels_, levels);
}

// Throws Error on all ranks if one fails.
std::shared_ptr<Group> NcclGroup::join_part(const std::vector<int>& ranks) {
  PartExchange part(exchange_, ranks);
  std::shared_ptr<Group> group;
  std::string failure;
  try {
    if (!settings_.compress_first) {
      exchange_.allgather("");
      grid_->split(comm_, aborted_);
    }
    group = engine()->join(part);
    // A part uses the settings of its own first rank; the kernels are for rank 0's blocks.
    if (group->settings().block_size != settings_.block_size)
      throw Error("OMNIHVD_BLOCK_SIZE is not the same on all ranks");
  } catch (const Error& error) {
    failure = error.what();
  }
  part.finish(failure);
  return group;
}

void NcclGroup::leave_levels(bool wait) {
  if (const auto levels = std::atomic_load(&levels_)) levels->leave(wait);
}

void NcclGroup::choose_levels() {
  const Hierarchy wanted = settings_.hierarchy;
  if (wanted == Hierarchy::off) return;
  const char* obstacle = grid_obstacle(hosts_);
  if (settings_.compress_first && !colocated_)
    obstacle = "OMNIHVD_COMPRESS_FIRST works without dedicated aggregators only";
  if (!settings_.compress_first && !can_split_)
    obstacle = "this NCCL has no ncclCommSplit (2.18 has)";
  if (obstacle == nullptr) {
    std::atomic_store(&grid_, std::make_shared<NcclGrid>(rank(), hosts_));
  } else if (rank() == 0) {
    static std::once_flag once;
    std::call_once(once, [&] {
      log(wanted == Hierarchy::on ? LogLevel::warning : LogLevel::info, "the ", size(),
          " ranks of a communicator stream without reducing inside the hosts first: ", obstacle);
    });
  }
}

// --- leaving

// The streams and the engine have done with the sets. False: they will not, or not soon.
bool NcclGroup::wait_until_free(const std::vector<std::shared_ptr<StagingSet>>& sets) {
  using Clock = std::chrono::steady_clock;
  constexpr long kOurs = 2;  // references: in the staging, and in `sets`
  std::optional<Clock::time_point> hopeless;
  for (const auto& set : sets) {
    while (true) {
      const CuResult state = cuda().event_query(set->free);
      if (state != CuResult::success && state != CuResult::not_ready) return false;
      if (state == CuResult::success && set.use_count() == kOurs) break;
      if (!hopeless && (aborted_ || !failure().empty())) {
        leave_levels(true);
        staging_.release_waiters();
        hopeless = Clock::now();
      }
      if (hopeless && std::chrono::duration<double>(Clock::now() - *hopeless).count() > kPatience_s)
        return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

void NcclGroup::leave() {
  if (host_abort_.joinable()) host_abort_.join();  // it was shrunk
  const std::lock_guard<std::mutex> lock(calls_);
  const CudaScope scope(exchange_.context());
  const bool free = free_memory();
  if (const auto grid = std::atomic_load(&grid_)) free ? grid->destroy() : grid->abort();
}

// False: it is given up, as it may still be used.
bool NcclGroup::free_memory() {
  bool free = wait_until_free(staging_.sets());
  if (const auto way = std::atomic_load(&union_)) {
    const bool ended = way->finish();
    if (!ended) new auto(way);
    std::atomic_store(&union_, std::shared_ptr<UnionWay>());
    free = free && ended;
  }
  leave_levels(!free);
  const auto sets = staging_.take_all();
  if (!free) {
    log(LogLevel::warning, "a communicator that failed still uses its memory, which is given up");
    give_up(sets);
  }
  exchange_.release();
  probe_ = PinnedMemory();
  return free;
}

// Left before released: what the engine sends must not be what the stream writes next.
void NcclGroup::interrupt(const std::string& why) {
  fail(why);
  leave_levels(true);
  staging_.release_waiters();
  if (const auto way = std::atomic_load(&union_)) way->interrupt();
}

void NcclGroup::abort_host() {
  if (const auto grid = std::atomic_load(&grid_); grid && !host_abort_.joinable())
    host_abort_ = std::thread([grid] { grid->abort(); });
}

NcclResult NcclGroup::abort(const std::function<NcclResult()>& abort_nccl) {
  aborted_ = true;
  interrupt("the communicator was aborted");
  {
    // Whoever is at work sees that soon, and may have joined levels since; unless NCCL or CUDA
    // holds him: then aborting NCCL frees him.
    const std::unique_lock<std::mutex> lock = lock_soon(calls_);
    if (lock.owns_lock()) leave_levels(true);
  }
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
