// What the ranks of a communicator agree on before their first sum: rank 0's settings, and what
// stands in the way on any rank.
//
// Two exchanges: greetings, then obstacles. One thread calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "session/settings.h"
#include "shims/nccl/exchange.h"
#include "shims/nccl/kernels.h"
#include "sums/meeting.h"

namespace omnihvd {

// For communicators whose first sum this thread makes: instead of OMNIHVD_GPU's value, or null for
// that. The same on all ranks of the communicator. Throws Error: there is no such value.
void choose_gpu_way(const char* value);

class NcclTerms {
 public:
  // What this rank says in each exchange, and what it makes of what all have said. read_greetings()
  // throws Error if the ranks cannot sum together; the other exchange takes place all the same.
  std::string greet(NcclExchange& exchange);
  void read_greetings(const std::vector<std::string>& greetings, int own_rank);
  std::string prepare(const NcclExchange& exchange, bool failed);
  void read_obstacles(const std::vector<std::string>& obstacles, const NcclExchange& exchange);

  // Then, the same on all ranks:
  const Settings& settings() const { return settings_; }            // rank 0's where all must agree
  const std::string& order() const { return order_; }               // of communicators
  const std::vector<std::string>& hosts() const { return hosts_; }  // of each rank
  bool can_part() const { return can_part_; }    // NCCL is new enough on all ranks
  bool colocated() const { return colocated_; }  // aggregators, on rank 0
  // Why a tensor of so many bytes is left to NCCL, or none: it is taken.
  Reason refusal(uint64_t bytes) const;
  void refuse(Reason reason) { refusal_ = reason; }  // all calls, for good

  const KernelTable& kernels() const { return *kernels_; }  // if nothing is in the way

  void free() { probe_ = PinnedMemory(); }  // in a CudaScope
  void give_up() { new PinnedMemory(std::move(probe_)); }

 private:
  void read_words(const std::vector<std::string>& words);
  Reason find_obstacle(const NcclExchange& exchange, std::string* why);

  std::optional<Greeting> greeting_;
  Settings settings_;
  std::string order_;
  std::vector<std::string> hosts_;
  bool can_part_ = false, colocated_ = true;
  Reason refusal_ = Reason::none;
  PinnedMemory probe_;
  std::optional<KernelTable> kernels_;
};

}  // namespace omnihvd
