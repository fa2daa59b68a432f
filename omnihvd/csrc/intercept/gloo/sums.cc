// Intercepts the allreduce and the reducescatter of Horovod's process sets on Gloo: the engine
// makes the sums that it knows; Gloo makes all other calls unchanged.
//
// Every decision depends only on arguments that are equal on all ranks, and on what the ranks have
// told each other. Failures are thrown: Horovod turns them into HorovodInternalError.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/library.h"
#include "base/error.h"
#include "base/log.h"
#include "communicator/communicator.h"
#include "engine/session.h"
#include "engine/stats.h"
#include "intercept/gloo/horovod.h"

#define OMNIHVD_EXPORT extern "C" __attribute__((visibility("default")))

namespace omnihvd {
namespace {

// A Horovod process set, from its hvd.init() or hvd.add_process_set() to its end.
struct ProcessSet {
  ProcessSet(const HorovodLibrary& of, GlooContext* connected)
      : library(of),
        context(connected),
        ranks(connected->of_process_set),
        sums(connected->of_process_set->size, Beside::gloo) {}
  const HorovodLibrary& library;
  GlooContext* const context;  // it owns the ranks, so it lives as long as they do
  const std::weak_ptr<GlooRanks> ranks;
  Communicator sums;
};

std::mutex mutex;  // guards what follows
bool used = false;
std::map<GlooRanks*, std::shared_ptr<ProcessSet>>& process_sets() {
  static auto& sets = *new std::map<GlooRanks*, std::shared_ptr<ProcessSet>>;
  return sets;
}
std::map<std::string, std::unique_ptr<HorovodLibrary>>& libraries() {
  static auto& all = *new std::map<std::string, std::unique_ptr<HorovodLibrary>>;
  return all;
}

// Local. Made at the first call; null if Horovod's objects are not as expected. Also leaves the
// sets that Horovod has ended meanwhile, for good or to begin anew with other ranks.
std::shared_ptr<ProcessSet> process_set(const HorovodLibrary& library, GlooContext* context) {
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
  // While a set is watched, its address cannot be reused, even if it has ended.
  GlooRanks* const ranks = HorovodLibrary::ranks_of(context);
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
  const auto set = std::make_shared<ProcessSet>(library, context);
  set_log_rank(library.job_rank());
  try {
    set_log_level(settings_from_environment().log);
  } catch (const Error&) {  // reported when the ranks agree on the settings
  }
  sets.emplace(ranks, set);
  used = true;
  return set;
}

// The header before a rank's bytes. If it arrives as it was sent, all ranks are in the same
// context.
struct Announcement {
  char name[8] = {'o', 'm', 'n', 'i', 'h', 'v', 'd', '1'};
  uint32_t rank = 0, bytes = 0;
};

// Out-of-band allgather for the bootstrap of a process set. It uses Horovod's own Gloo, with Gloo's
// time-out (HOROVOD_GLOO_TIMEOUT_SECONDS). Runs on the process set's own context, inside an
// allreduce on it, when Horovod begins no other collective.
class GlooExchange : public Exchange {
 public:
  GlooExchange(const HorovodLibrary& library, GlooContext* context)
      : Exchange(context->of_process_set->rank, context->of_process_set->size),
        library_(library),
        context_(context) {}

  std::vector<std::string> allgather(const std::string& mine) override {
    if (mine.size() >= INT_MAX / static_cast<size_t>(size_))
      throw Error("too much to tell the other ranks: " + std::to_string(mine.size()) + " bytes");
    Announcement announcement;
    announcement.rank = static_cast<uint32_t>(rank_);
    announcement.bytes = static_cast<uint32_t>(mine.size()) + 1;  // Gloo sends no empty message
    std::string words(reinterpret_cast<const char*>(&announcement), sizeof announcement);
    const std::string announced =
        gather(words, std::vector<int>(size_, static_cast<int>(words.size())));
    std::vector<int> lengths;
    for (int r = 0; r < size_; ++r) {
      std::memcpy(&announcement, &announced[r * sizeof announcement], sizeof announcement);
      const int64_t bytes = announcement.bytes;
      if (std::memcmp(announcement.name, Announcement().name, sizeof announcement.name) != 0 ||
          announcement.rank != static_cast<uint32_t>(r) || bytes < 1 || bytes > INT_MAX / size_)
        throw Error("rank " + std::to_string(r) +
                    " says something else over Gloo: install the same omnihvd on all hosts, and "
                    "import it on every rank before hvd.init()");
      lengths.push_back(static_cast<int>(bytes));
    }
    const std::string all = gather(mine + '.', lengths);
    std::vector<std::string> parts;
    for (size_t r = 0, at = 0; r < lengths.size(); at += lengths[r++])
      parts.push_back(all.substr(at, lengths[r] - 1));
    return parts;
  }

 private:
  // lengths: in bytes, none 0. Returns all ranks' bytes, concatenated.
  std::string gather(const std::string& mine, std::vector<int> lengths) const {
    std::string all(std::accumulate(lengths.begin(), lengths.end(), size_t{0}), '\0');
    std::string input = mine;
    std::vector<int> offsets(size_, 0);  // in the input
    GlooAlgorithms bytes = library_.for_bytes(context_);
    try {
      bytes.functions->allgather(&bytes, input.data(), all.data(), lengths.data(), offsets.data());
    } catch (const std::exception& error) {
      throw Error(
          first_missing(all, lengths) + " of " + std::to_string(size_) +
          " did not come to the allreduce in which all are connected: the ranks did not meet. "
          "It is late, has ended, or does not use omnihvd (import omnihvd on every rank "
          "before hvd.init()). Gloo says: " +
          error.what());
    }
    return all;
  }

  // Names the nearest rank from which nothing has come. all: the result of gather(), as far as it
  // arrived. Gloo passes messages from each rank to the next, so nothing comes through a missing
  // rank. No message is all zeros.
  std::string first_missing(const std::string& all, const std::vector<int>& lengths) const {
    for (int before = 1; before < size_; ++before) {
      const int rank = (rank_ - before + size_) % size_;
      const auto at = std::accumulate(lengths.begin(), lengths.begin() + rank, size_t{0});
      if (all.find_first_not_of('\0', at) >= at + size_t(lengths[size_t(rank)]))
        return "rank " + std::to_string(rank);
    }
    return "another rank";
  }

  const HorovodLibrary& library_;
  GlooContext* const context_;
};

// Horovod's Gloo as the library for the algorithms (algorithms/library.h). A reduce-scatter is
// always made whole, in place.
class GlooSums : public Library {
 public:
  // For one call; object: the one that the call was made on. counts: of a reduce-scatter.
  GlooSums(GlooAlgorithms& object, size_t element, GlooExchange& exchange, std::vector<int>* counts)
      : object_(object), element_(element), exchange_(exchange), counts_(counts) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }

  void run(const void* in, void* out, uint64_t count) override {
    const auto& gloo = HorovodLibrary::original(object_);
    if (counts_) return gloo.reducescatter(&object_, out, *counts_);
    if (in != out) std::memcpy(out, in, count * element_);
    gloo.allreduce(&object_, out, static_cast<int>(count), kGlooSum);
  }

  void unite(uint8_t* bits, size_t bytes) override {
    const std::string mine(reinterpret_cast<const char*>(bits), bytes);
    for (const std::string& theirs : exchange_.allgather(mine))
      std::transform(theirs.begin(), theirs.end(), bits, bits,
                     [](char a, uint8_t b) { return static_cast<uint8_t>(a | b); });
  }

  void tell(void* data, size_t bytes) override {
    const std::string mine(static_cast<const char*>(data), bytes);
    std::memcpy(data, exchange_.allgather(mine)[0].data(), bytes);
  }

 private:
  GlooAlgorithms& object_;
  const size_t element_;
  GlooExchange& exchange_;
  std::vector<int>* const counts_;
};

struct Arguments {
  void* data;
  uint64_t count;
  int op = kGlooSum;
  std::vector<int>* counts = nullptr;  // for a reducescatter: each rank's

  const char* what() const { return counts ? "a reduce-scatter" : "an allreduce"; }
};

// Sums, or returns the fallback reason if Gloo must make the call. Throws Error.
Reason sum(GlooAlgorithms& object, const GlooType& type, const Arguments& a,
           std::shared_ptr<ProcessSet>* set) {
  if (a.op != kGlooSum) return Reason::op;
  if (!type.dtype) return Reason::dtype;
  if (a.count == 0) return Reason::empty;
  const HorovodLibrary& library = HorovodLibrary::of(object);
  *set = process_set(library, object.context);
  if (!*set) return Reason::layout;
  GlooExchange exchange(library, object.context);
  GlooSums sums(object, static_cast<size_t>(type.bytes), exchange, a.counts);
  Call call{a.data, a.data, a.count, *type.dtype};
  if (!a.counts) {
    call.may_be_coded = call.dtype == DType::i32;
    return (*set)->sums.take(call, exchange, sums);
  }
  if (a.counts->size() != size_t(exchange.size())) return Reason::invalid;
  const std::vector<uint64_t> shares(a.counts->begin(), a.counts->end());
  call.op = Op::reduce_scatter;
  call.shares = &shares;
  return (*set)->sums.take(call, exchange, sums);
}

// left: calls Gloo, in a fallback.
template <typename Left>
void take_or_leave(GlooAlgorithms& object, const GlooType& type, const Arguments& a, Left left) {
  const uint64_t bytes = a.count * uint64_t(type.bytes);
  std::shared_ptr<ProcessSet> set;
  Reason reason = Reason::none;
  try {
    reason = sum(object, type, a, &set);
  } catch (const FailedBefore&) {
    throw;
  } catch (const std::exception& error) {
    log(LogLevel::error, a.what(), " failed: ", error.what());
    throw;
  }
  if (reason == Reason::none) return;
  count_pass(reason, bytes);
  const Communicator::Elsewhere elsewhere(set ? &set->sums : nullptr, a.what(), "Gloo", bytes,
                                          reason);
  left(HorovodLibrary::original(object));
}

template <size_t type>
void allreduce(GlooAlgorithms* object, void* data, int count, int op) {
  const Arguments arguments{data, uint64_t(std::max(count, 0)), op};
  take_or_leave(*object, kGlooTypes[type], arguments,
                [=](const auto& gloo) { gloo.allreduce(object, data, count, op); });
}

template <size_t type>
void reducescatter(GlooAlgorithms* object, void* data, std::vector<int>& counts) {
  const auto all = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  take_or_leave(*object, kGlooTypes[type], {data, all, kGlooSum, &counts},
                [&](const auto& gloo) { gloo.reducescatter(object, data, counts); });
}

template <size_t... types>
void hook(const std::string& path, std::index_sequence<types...>) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<HorovodLibrary>& library = libraries()[path];
  if (library) return;
  const HorovodLibrary::Replacements ours{{{&allreduce<types>, &reducescatter<types>}...}};
  auto found = std::make_unique<HorovodLibrary>(path, ours);
  found->hook();
  library = std::move(found);
}

}  // namespace
}  // namespace omnihvd

// Hooks one of Horovod's libraries, which must be of a known version. Returns null, or the
// obstacle: a text that lives until the next call. Repeated calls are harmless.
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

// Closes the connections of this library's process sets. Called when Horovod is shut down, which
// keeps them until its next start has met all other ranks. Else another rank that waits for a
// message of this one waits for Gloo's time-out, and both starts wait with it.
OMNIHVD_EXPORT void omnihvd_gloo_shut_down(const char* library) {
  const std::lock_guard<std::mutex> lock(omnihvd::mutex);
  const auto found = omnihvd::libraries().find(library);
  if (found == omnihvd::libraries().end()) return;
  for (const auto& [ranks, set] : omnihvd::process_sets())
    if (&set->library == found->second.get() && !set->ranks.expired()) *set->context = {};
}

// Leaves all groups and ends the engine. Called at the process's end, when Horovod has ended.
OMNIHVD_EXPORT void omnihvd_gloo_end() {
  {
    std::map<omnihvd::GlooRanks*, std::shared_ptr<omnihvd::ProcessSet>> sets;
    const std::lock_guard<std::mutex> lock(omnihvd::mutex);
    sets.swap(omnihvd::process_sets());
    if (!omnihvd::used) return;  // Horovod runs on another backend, which ends the engine
  }
  omnihvd::stop_process_engine();
  omnihvd::log_summary("Gloo");
}
