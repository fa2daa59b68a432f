// The allreduce of Horovod's process sets on Gloo, taken over: sums that the engine knows go to it,
// all else to Gloo untouched.
//
// Every decision depends on arguments alone that are equal on all ranks, and on rank 0's settings.
// The reasons to leave a call to Gloo, as they are counted: op, dtype, empty, layout (Horovod's
// objects are not as expected), one rank, disabled, small. Failures are thrown: Horovod makes
// HorovodInternalError of them.
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "hook/polite_yield.h"
#include "session/stats.h"
#include "shims/gloo/exchange.h"
#include "shims/gloo/horovod.h"
#include "shims/gloo/library.h"
#include "sums/agreed_group.h"
#include "sums/coded_buffer.h"

#define OMNIHVD_EXPORT extern "C" __attribute__((visibility("default")))

namespace omnihvd {
namespace {

// A process set of Horovod's from its hvd.init() or hvd.add_process_set() to its end.
struct ProcessSet {
  std::weak_ptr<GlooRanks> ranks;
  AgreedGroup group;
};

std::mutex mutex;  // guards what follows
bool used = false;
std::map<GlooRanks*, std::shared_ptr<ProcessSet>>& process_sets() {
  static auto& sets = *new std::map<GlooRanks*, std::shared_ptr<ProcessSet>>;
  return sets;
}
std::map<std::string, std::unique_ptr<GlooLibrary>>& libraries() {
  static auto& all = *new std::map<std::string, std::unique_ptr<GlooLibrary>>;
  return all;
}

// Local; made at the first call; null if Horovod's objects are not as expected. Those that Horovod
// has ended meanwhile, for good or to begin anew with other ranks, are left.
std::shared_ptr<ProcessSet> process_set(const GlooLibrary& library, const GlooContext* context) {
  std::vector<std::shared_ptr<ProcessSet>> ended;  // left when the mutex is free
  const std::lock_guard<std::mutex> lock(mutex);
  auto& sets = process_sets();
  for (auto at = sets.begin(); at != sets.end();) {
    if (at->second->ranks.expired()) {
      ended.push_back(std::move(at->second));
      at = sets.erase(at);
    } else {
      ++at;
    }
  }
  // The address of one that has ended cannot come again while it is watched.
  GlooRanks* const ranks = GlooLibrary::ranks_of(context);
  const auto known = sets.find(ranks);
  if (known != sets.end()) return known->second;
  if (ranks == nullptr || !library.fits(*ranks)) {
    static std::once_flag once;
    std::call_once(once, [] {
      log(LogLevel::warning,
          "Horovod's process sets are not as in Horovod 0.28.1: it keeps its own allreduce over "
          "Gloo. Build it again (python -m omnihvd.tools.build_horovod), or run it on MPI.");
    });
    return nullptr;
  }
  const auto set = std::make_shared<ProcessSet>();
  set->ranks = context->of_process_set;
  set_log_rank(library.job_rank());
  try {
    set_log_level(settings_from_environment().log);
  } catch (const Error&) {  // reported where the ranks agree on the settings
  }
  sets.emplace(ranks, set);
  used = true;
  return set;
}

// Reduces and returns null, or returns why the call is left to Gloo. Throws Error.
const char* reduce(GlooAlgorithms& object, const GlooType& type, void* data, int count, int op) {
  if (op != kGlooSum) return "op";
  if (!type.dtype) return "dtype";
  if (count <= 0) return "empty";
  const GlooLibrary& library = GlooLibrary::of(object);
  const std::shared_ptr<ProcessSet> set = process_set(library, object.context);
  if (!set) return "layout";
  GlooExchange exchange(library, object.context);
  const uint64_t bytes = static_cast<uint64_t>(count) * static_cast<uint64_t>(type.bytes);
  const bool coded = *type.dtype == DType::i32 && CodedBuffer::begins(data, bytes);
  if (exchange.size() < 2) {
    if (!coded) return "one rank";
    CodedBuffer(data, bytes).mark_summed();
    return nullptr;
  }
  const bool may_be_coded = *type.dtype == DType::i32 && set->group.int32_may_be_coded();
  if (const char* refusal = set->group.refusal(exchange, bytes, coded || may_be_coded))
    return refusal;
  GlooSums sums(object, static_cast<size_t>(type.bytes), exchange);
  const auto begun = std::chrono::steady_clock::now();
  const SumUnderWay under_way;
  Way way = Way::stream;
  if (coded) {
    CodedBuffer tensors(data, bytes);
    way = set->group.allreduce(exchange, tensors);
  } else if (may_be_coded) {
    way = set->group.allreduce_int32(exchange, data, static_cast<uint64_t>(count));
  } else {
    way = set->group.allreduce(exchange, sums, data, static_cast<uint64_t>(count), *type.dtype);
  }
  count_way(way, bytes, begun);
  return nullptr;
}

template <size_t type>
void allreduce(GlooAlgorithms* object, void* data, int count, int op) {
  try {
    const char* const reason = reduce(*object, kGlooTypes[type], data, count, op);
    if (reason == nullptr) return;
    count_pass(reason,
               static_cast<uint64_t>(count) * static_cast<uint64_t>(kGlooTypes[type].bytes));
  } catch (const std::exception& error) {
    log(LogLevel::error, "an allreduce failed: ", error.what());
    throw;
  }
  GlooLibrary::original(*object).allreduce(object, data, count, op);
}

template <size_t... types>
void hook(const std::string& path, std::index_sequence<types...>) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<GlooLibrary>& library = libraries()[path];
  if (library) return;
  auto found = std::make_unique<GlooLibrary>(path, GlooLibrary::Replacements{&allreduce<types>...});
  found->hook();
  library = std::move(found);
}

}  // namespace
}  // namespace omnihvd

// Hooks one of Horovod's libraries, which must be of a known version. Null, or what stands in the
// way: a text that lives until the next call. Again is harmless.
OMNIHVD_EXPORT const char* omnihvd_gloo_hook(const char* library) {
  static thread_local std::string problem;
  try {
    omnihvd::hook(library, std::make_index_sequence<omnihvd::kGlooTypeCount>());
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

// Leaves all groups and ends the engine: at the process's end, when Horovod has ended.
OMNIHVD_EXPORT void omnihvd_gloo_end() {
  {
    std::map<omnihvd::GlooRanks*, std::shared_ptr<omnihvd::ProcessSet>> sets;
    const std::lock_guard<std::mutex> lock(omnihvd::mutex);
    sets.swap(omnihvd::process_sets());
    if (!omnihvd::used) return;  // Horovod runs on something else, which ends the engine
  }
  omnihvd::stop_process_engine();
  omnihvd::log_summary("Gloo");
}
