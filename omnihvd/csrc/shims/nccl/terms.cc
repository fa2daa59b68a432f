#include "shims/nccl/terms.h"

#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "shims/nccl/hardware_queues.h"

namespace omnihvd {
namespace {

// Tells processes apart, also where containers number them alike.
const std::string& process_token() {
  static const std::string token = random_bytes(16);
  return token;
}

thread_local std::optional<GpuWay> chosen_way;

bool modules_load_lazily() {
  int mode = 0;
  if (cuda().module_get_loading_mode != nullptr)
    check_cuda(cuda().module_get_loading_mode(&mode), "cuModuleGetLoadingMode");
  return mode == kCuLoadsLazily;
}

// What keeps this thread or CUDA from what a sum on the union of the blocks needs.
std::string obstacle_of_union(std::string* why) {
  if (hardware_queues() == 1) {
    *why =
        "CUDA_DEVICE_MAX_CONNECTIONS=1: a stream that waits would hold up those that it waits for";
    return "queues";
  }
  const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking != nullptr && std::strcmp(blocking, "0") != 0) {
    *why = "CUDA_LAUNCH_BLOCKING: who calls waits inside CUDA for a kernel that waits for the sum";
    return "blocking";
  }
  if (modules_load_lazily()) {
    *why =
        "CUDA loads each kernel when it is first launched, and waits for the device meanwhile, "
        "which may be waiting for a sum. Import omnihvd before CUDA is initialized, or set "
        "CUDA_MODULE_LOADING=EAGER, or OMNIHVD_GPU=stream";
    return "loading";
  }
  return "";
}

}  // namespace

void choose_gpu_way(std::optional<GpuWay> way) { chosen_way = way; }

std::string NcclTerms::greet(NcclExchange& exchange) {
  const Settings& mine = greeting_.emplace().settings();
  exchange.set_patience(mine);
  if (mine.enable) warn_of_few_queues();
  BytesWriter out;
  out.text(process_token());
  out.text(random_bytes(8));
  out.u64(chosen_way ? 1 + uint64_t(*chosen_way) : 0);
  return greeting_->with(out.bytes());
}

void NcclTerms::read_words(const std::vector<std::string>& words) {
  std::set<std::string> processes;
  uint64_t chosen = 0;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    BytesReader in(words[rank]);
    if (!processes.insert(in.text()).second) refusal_ = "several ranks in a process";
    const std::string order = in.text();
    const uint64_t choice = in.u64();
    if (rank > 0) {
      if (choice != chosen)
        throw Error("rank " + std::to_string(rank) +
                    " has chosen another way for this communicator than rank 0");
      continue;
    }
    order_ = order;
    chosen = choice;
    if (choice != 0) settings_.gpu = static_cast<GpuWay>(choice - 1);
  }
}

void NcclTerms::read_greetings(const std::vector<std::string>& greetings, int own_rank) {
  Agreement agreed = greeting_->read(greetings, own_rank);
  settings_ = agreed.settings;
  colocated_ = settings_.aggregators.empty();
  hosts_ = std::move(agreed.hosts);
  read_words(agreed.words);
  if (!refusal_.empty()) return;
  if (settings_.gpu == GpuWay::original) refusal_ = "original";
  // NVLink is ten times as fast as the host's memory.
  if (std::set<std::string>(hosts_.begin(), hosts_.end()).size() == 1) refusal_ = "one host";
}

// A word, and a sentence; empty: nothing.
std::string NcclTerms::find_obstacle(const NcclExchange& exchange, std::string* why) {
  std::string word;
  try {
    const CudaScope scope(exchange.context());
    word = "driver";
    // Works on all devices if the driver has it; still, this is not the time to find out late.
    if (cuda().stream_wait_value32 == nullptr)
      throw Error("the CUDA driver is older than 11.7, and lacks cuStreamWaitValue32_v2");
    probe_ = PinnedMemory(sizeof(uint32_t));
    *reinterpret_cast<uint32_t*>(probe_.data()) = 0;
    check_cuda(
        cuda().stream_wait_value32(exchange.stream(), probe_.address(), 0, kCuWaitGreaterOrEqual),
        "cuStreamWaitValue32");
    if (settings_.gpu != GpuWay::stream)
      if (const std::string in_the_way = obstacle_of_union(why); !in_the_way.empty())
        return in_the_way;
    word = "kernels";
    kernels_.emplace(exchange.device(), settings_.block_size, settings_.kernel_cache);
    return "";
  } catch (const Error& error) {
    *why = error.what();
    return word;
  }
}

std::string NcclTerms::prepare(const NcclExchange& exchange, bool failed) {
  std::string word, why;
  if (!failed && refusal_.empty() && settings_.enable) word = find_obstacle(exchange, &why);
  BytesWriter out;
  out.text(word);
  out.text(why);
  out.u64(nccl().comm_split != nullptr);
  return out.bytes();
}

void NcclTerms::read_obstacles(const std::vector<std::string>& obstacles,
                               const NcclExchange& exchange) {
  can_split_ = true;
  for (size_t r = 0; r < obstacles.size(); ++r) {
    BytesReader in(obstacles[r]);
    const std::string word = in.text(), why = in.text();
    can_split_ = can_split_ && in.u64() != 0;
    if (word.empty() || !refusal_.empty()) continue;
    refusal_ = word;
    if (exchange.rank() == 0)
      log(LogLevel::warning, "a communicator of ", exchange.size(), " ranks is left to NCCL; rank ",
          r, ": ", why);
  }
  if (can_split_ || settings_.gpu == GpuWay::stream) return;
  settings_.gpu = GpuWay::stream;
  if (exchange.rank() == 0)
    log(LogLevel::warning, "sums on GPUs are streamed: NCCL has no ncclCommSplit (2.18 has)");
}

bool NcclTerms::one_gpu_a_host() const {
  return std::set<std::string>(hosts_.begin(), hosts_.end()).size() == hosts_.size();
}

const char* NcclTerms::refusal(uint64_t bytes) const {
  if (!settings_.enable) return "disabled";
  if (!refusal_.empty()) return refusal_.c_str();
  return bytes < settings_.gpu_min_bytes ? "small" : nullptr;
}

}  // namespace omnihvd
