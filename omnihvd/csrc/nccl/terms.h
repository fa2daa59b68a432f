// The terms on which the ranks of a communicator agree before their first sum: rank 0's settings,
// and the obstacles on any rank.
//
// Two out-of-band exchanges: greetings, then obstacles. One thread calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "communicator/meeting.h"
#include "engine/settings.h"
#include "nccl/exchange.h"
#include "nccl/kernels.h"

namespace omnihvd {

// Sets a value that replaces OMNIHVD_GPU's for communicators that make their first sum on this
// thread; null: OMNIHVD_GPU applies. It must be the same on all ranks of the communicator. Throws
// Error if there is no such value.
void choose_gpu_way(const char* value);

// Why this process leaves a new communicator to NCCL without a word to the other ranks: neither
// OMNIHVD_GPU nor choose_gpu_way() asks for more. none: it asks.
Reason unasked();

class NcclTerms {
 public:
  // This rank's message in each exchange, and the evaluation of all messages. read_greetings()
  // throws Error if the ranks cannot sum together; the second exchange takes place all the same.
  std::string greet(NcclExchange& exchange);
  void read_greetings(const std::vector<std::string>& greetings, int own_rank);
  std::string prepare(const NcclExchange& exchange, bool failed);
  void read_obstacles(const std::vector<std::string>& obstacles, const NcclExchange& exchange);

  // Afterwards, the same on all ranks:
  const Settings& settings() const { return settings_; }            // rank 0's where all must agree
  const std::string& order() const { return order_; }               // of communicators
  const std::vector<std::string>& hosts() const { return hosts_; }  // of each rank
  int number_of_hosts() const;
  bool can_part() const { return can_part_; }  // NCCL is new enough on all ranks
  // The fallback reason for a tensor of so many bytes, or none if omnihvd makes the sum.
  Reason refusal(uint64_t bytes) const;
  void refuse(Reason reason) { refusal_ = reason; }  // all calls, for good

  const KernelTable& kernels() const { return *kernels_; }  // if there is no obstacle

 private:
  void read_words(const std::vector<std::string>& words);

  std::optional<Greeting> greeting_;
  Settings settings_;
  std::string order_;
  std::vector<std::string> hosts_;
  bool can_part_ = false;
  Reason refusal_ = Reason::none;
  std::optional<KernelTable> kernels_;
};

}  // namespace omnihvd
