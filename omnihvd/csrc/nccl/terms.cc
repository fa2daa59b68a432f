#include "nccl/terms.h"

#include <cstdlib>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"

namespace omnihvd {
namespace {

// Distinguishes processes, even if containers number them alike.
const std::string& process_token() {
  static const std::string token = random_bytes(16);
  return token;
}

thread_local std::optional<Way> chosen_way;

}  // namespace

void choose_gpu_way(const char* value) {
  chosen_way.reset();
  if (value == nullptr) return;
  Settings parsed;
  for (const Setting& setting : all_settings())
    if (setting.name == "OMNIHVD_GPU") setting.parse(parsed, value);
  chosen_way = parsed.gpu;
}

Reason unasked() {
  // Wrong values count as their defaults: other ranks learn of them only if this one asks.
  static const Settings asked = [] {
    Settings found;
    for (const Setting& setting : all_settings()) {
      if (setting.name != "OMNIHVD_GPU" && setting.name != "OMNIHVD_ENABLE") continue;
      const char* const value = std::getenv(setting.name.c_str());
      try {
        if (value != nullptr) setting.parse(found, value);
      } catch (const Error& error) {
        log(LogLevel::error, error.what());
      }
    }
    return found;
  }();
  if (!asked.enable) return Reason::disabled;
  const Way way = chosen_way.value_or(asked.gpu);
  return way == Way::original && asked.gpu == Way::original ? Reason::original : Reason::none;
}

std::string NcclTerms::greet(NcclExchange& exchange) {
  const Settings& mine = greeting_.emplace().settings();
  exchange.set_patience(mine);
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
  if (settings_.arithmetic != ArithmeticKind::floats && own_rank == 0)
    log(LogLevel::warning,
        "sums on GPUs are made of floats: OMNIHVD_ARITHMETIC=", name_of(settings_.arithmetic),
        " is of sums on CPUs");
  settings_.arithmetic = ArithmeticKind::floats;
  hosts_ = std::move(agreed.hosts);
  read_words(agreed.words);
  if (refusal_ != Reason::none) return;
  if (settings_.gpu == Way::original) refusal_ = Reason::original;
  // NVLink is ten times as fast as the host's memory.
  if (number_of_hosts() == 1) refusal_ = Reason::one_host;
}

std::string NcclTerms::prepare(const NcclExchange& exchange, bool failed) {
  Reason obstacle = Reason::none;
  std::string why;
  if (!failed && refusal_ == Reason::none && settings_.enable) {
    try {
      const CudaScope scope(exchange.context());
      kernels_.emplace(exchange.device(), settings_.block_size, settings_.kernel_cache);
    } catch (const Error& error) {
      obstacle = Reason::kernels;
      why = error.what();
    }
  }
  BytesWriter out;
  out.u64(uint64_t(obstacle));
  out.text(why);
  out.u64(nccl().comm_init_rank_config != nullptr);
  return out.bytes();
}

void NcclTerms::read_obstacles(const std::vector<std::string>& obstacles,
                               const NcclExchange& exchange) {
  can_part_ = true;
  for (size_t r = 0; r < obstacles.size(); ++r) {
    BytesReader in(obstacles[r]);
    const auto word = Reason(in.number<uint8_t>());
    const std::string why = in.text();
    can_part_ = can_part_ && in.u64() != 0;
    if (word == Reason::none || refusal_ != Reason::none) continue;
    refusal_ = word;
    if (exchange.rank() == 0)
      log(LogLevel::warning, "a communicator of ", exchange.size(), " ranks is left to NCCL; rank ",
          r, ": ", why);
  }
}

int NcclTerms::number_of_hosts() const {
  return int(std::set<std::string>(hosts_.begin(), hosts_.end()).size());
}

Reason NcclTerms::refusal(uint64_t bytes) const {
  if (!settings_.enable) return Reason::disabled;
  if (refusal_ != Reason::none) return refusal_;
  return bytes < settings_.gpu_min_bytes ? Reason::small : Reason::none;
}

}  // namespace omnihvd
