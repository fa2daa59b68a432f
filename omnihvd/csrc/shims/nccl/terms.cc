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

thread_local std::optional<Way> chosen_way;

bool modules_load_lazily() {
  int mode = 0;
  if (cuda().module_get_loading_mode != nullptr)
    check_cuda(cuda().module_get_loading_mode(&mode), "cuModuleGetLoadingMode");
  return mode == kCuLoadsLazily;
}

// What keeps this thread or CUDA from what a sum on the union of the blocks needs.
Reason obstacle_of_union(std::string* why) {
  if (hardware_queues() == 1) {
    *why =
        "CUDA_DEVICE_MAX_CONNECTIONS=1: a stream that waits would hold up those that it waits for";
    return Reason::queues;
  }
  const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking != nullptr && std::strcmp(blocking, "0") != 0) {
    *why = "CUDA_LAUNCH_BLOCKING: who calls waits inside CUDA for a kernel that waits for the sum";
    return Reason::blocking;
  }
  if (modules_load_lazily()) {
    *why =
        "CUDA loads each kernel when it is first launched, and waits for the device meanwhile, "
        "which may be waiting for a sum. Import omnihvd before CUDA is initialized, or set "
        "CUDA_MODULE_LOADING=EAGER, or OMNIHVD_GPU=stream";
    return Reason::loading;
  }
  return Reason::none;
}

}  // namespace

void choose_gpu_way(std::optional<Way> way) { chosen_way = way; }

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
    if (!processes.insert(in.text()).second) refusal_ = Reason::several_ranks_in_a_process;
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
    if (choice != 0) settings_.gpu = static_cast<Way>(choice - 1);
  }
}

void NcclTerms::read_greetings(const std::vector<std::string>& greetings, int own_rank) {
  Agreement agreed = greeting_->read(greetings, own_rank);
  settings_ = agreed.settings;
  colocated_ = settings_.aggregators.empty();
  hosts_ = std::move(agreed.hosts);
  read_words(agreed.words);
  if (refusal_ != Reason::none) return;
  if (settings_.gpu == Way::original) refusal_ = Reason::original;
  // NVLink is ten times as fast as the host's memory.
  if (std::set<std::string>(hosts_.begin(), hosts_.end()).size() == 1) refusal_ = Reason::one_host;
}

// A word, and a sentence.
Reason NcclTerms::find_obstacle(const NcclExchange& exchange, std::string* why) {
  Reason word = Reason::none;
  try {
    const CudaScope scope(exchange.context());
    word = Reason::driver;
    // Works on all devices if the driver has it; still, this is not the time to find out late.
    if (cuda().stream_wait_value32 == nullptr)
      throw Error("the CUDA driver is older than 11.7, and lacks cuStreamWaitValue32_v2");
    probe_ = PinnedMemory(sizeof(uint32_t));
    *reinterpret_cast<uint32_t*>(probe_.data()) = 0;
    check_cuda(
        cuda().stream_wait_value32(exchange.stream(), probe_.address(), 0, kCuWaitGreaterOrEqual),
        "cuStreamWaitValue32");
    if (settings_.gpu != Way::stream)
      if (const Reason in_the_way = obstacle_of_union(why); in_the_way != Reason::none)
        return in_the_way;
    word = Reason::kernels;
    kernels_.emplace(exchange.device(), settings_.block_size, settings_.kernel_cache);
    return Reason::none;
  } catch (const Error& error) {
    *why = error.what();
    return word;
  }
}

std::string NcclTerms::prepare(const NcclExchange& exchange, bool failed) {
  Reason word = Reason::none;
  std::string why;
  if (!failed && refusal_ == Reason::none && settings_.enable) word = find_obstacle(exchange, &why);
  BytesWriter out;
  out.u64(uint64_t(word));
  out.text(why);
  out.u64(nccl().comm_split != nullptr);
  return out.bytes();
}

void NcclTerms::read_obstacles(const std::vector<std::string>& obstacles,
                               const NcclExchange& exchange) {
  can_split_ = true;
  for (size_t r = 0; r < obstacles.size(); ++r) {
    BytesReader in(obstacles[r]);
    const auto word = Reason(in.u64());
    const std::string why = in.text();
    can_split_ = can_split_ && in.u64() != 0;
    if (word == Reason::none || refusal_ != Reason::none) continue;
    refusal_ = word;
    if (exchange.rank() == 0)
      log(LogLevel::warning, "a communicator of ", exchange.size(), " ranks is left to NCCL; rank ",
          r, ": ", why);
  }
  if (can_split_ || settings_.gpu == Way::stream) return;
  settings_.gpu = Way::stream;
  if (exchange.rank() == 0)
    log(LogLevel::warning, "sums on GPUs are streamed: NCCL has no ncclCommSplit (2.18 has)");
}

bool NcclTerms::one_gpu_a_host() const {
  return std::set<std::string>(hosts_.begin(), hosts_.end()).size() == hosts_.size();
}

Reason NcclTerms::refusal(uint64_t bytes) const {
  if (!settings_.enable) return Reason::disabled;
  if (refusal_ != Reason::none) return refusal_;
  return bytes < settings_.gpu_min_bytes ? Reason::small : Reason::none;
}

}  // namespace omnihvd
