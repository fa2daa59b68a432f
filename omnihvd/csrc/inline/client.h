// A worker of an aggregator in the data path, over sockets of UDP. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/awake_clock.h"
#include "base/error.h"
#include "base/own_process.h"
#include "inline/jobs.h"
#include "inline/slot_worker.h"
#include "transport/udp_socket.h"

namespace omnihvd {

// The aggregator takes no such job, though it is there.
struct InlineRefused : Error {
  using Error::Error;
};

class InlineClient {
 public:
  struct Options {
    std::string secret;
    std::string host;  // the aggregator's IPv4 address
    uint16_t port = 0;
    uint64_t session = 0;  // the job's number, the same on all workers, and of no other job
    uint32_t rank = 0, ranks = 1;
    std::string name;                // what messages call this rank; empty: "rank N"
    uint8_t numbers = INLINE_INT32;  // of all workers alike
    double patience_s = 15;  // with an aggregator of which no sign of life comes, or no result
    double workers_patience_s = 0;  // with the others, in a sum that does not get on; 0: for ever
    double shortest_s = 0.02, longest_s = 0.5;  // time-outs of datagrams
  };
  // What the caller has to do while it waits, and how often, or when a signal comes; it may throw
  // Error to end that.
  struct Meanwhile {
    std::function<void()> call;
    uint64_t every_us = UINT64_MAX;
  };
  // Joins the job. Throws Error.
  InlineClient(const Options& options, const Meanwhile& meanwhile);
  ~InlineClient();

  // Sums over all workers, in place; dense: zero blocks travel, too. Throws Error; the job cannot
  // go on then.
  void sum(void* data, uint64_t count, DType dtype, bool dense, const Meanwhile& meanwhile);
  const SlotWorker& worker() const { return *worker_; }

 private:
  void join(const Meanwhile& meanwhile);
  void join_group(uint32_t address, uint16_t port);
  void say(uint8_t kind, uint8_t flags);
  void sum(InlineTensor& tensor, const Meanwhile& meanwhile);
  void look_after_others();
  std::string why_give_up(uint64_t now) const;
  // Waits at most so long, and takes what has come.
  void step(uint64_t timeout_us, const Meanwhile& meanwhile);
  void take(const uint8_t* data, size_t size);
  void take_control(const uint8_t* data, size_t size);
  void send_all();
  void look_for_refusals();
  std::string not_through() const;
  std::string missing() const;
  std::string says(const std::string& why) const;
  [[noreturn]] void fail(const std::string& why) const { throw Error(says(why)); }

  const OwnProcess process_;
  const Options options_;
  const InlineSecret secret_;
  const uint64_t aggregator_;  // address
  UdpSocket socket_;
  std::optional<UdpSocket> group_;
  std::optional<inline_head> welcome_;
  std::unique_ptr<SlotWorker> worker_;
  std::vector<uint8_t> out_;
  std::string failure_;  // of a sum
  AwakeClock clock_;     // of all times here: others are not silent while this process is stopped
  uint64_t heard_at_ = 0, asked_at_ = 0, called_at_ = 0;
  uint64_t fine_at_ = 0;   // a result has come, or there was none yet
  bool in_doubt_ = false;  // when it last asked
  uint32_t missing_ = 0;   // for whom the aggregator said that it waits: bits; 0: not known
};

}  // namespace omnihvd
