// A worker of an in-network aggregator, over UDP sockets. One thread at a time.
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
#include "innetwork/jobs.h"
#include "innetwork/slot_worker.h"
#include "innetwork/udp/socket.h"
#include "numeric/codec.h"

namespace omnihvd {

// The aggregator is reachable but does not take such a job.
struct InlineRefused : Error {
  using Error::Error;
};

class InlineClient {
 public:
  struct Options {
    std::string secret;
    std::string host;  // the aggregator's IPv4 address
    uint16_t port = 0;
    uint64_t session = 0;  // the job's number: the same on all its workers, used by no other job
    uint32_t rank = 0, ranks = 1;
    std::string name;                // this rank's name in messages; empty: "rank N"
    uint8_t numbers = INLINE_INT32;  // the same on all workers
    double patience_s = 15;         // time-out for a silent aggregator, or one that sends no result
    double workers_patience_s = 0;  // time-out for the others if a sum stalls; 0: none
    double shortest_s = 0.02, longest_s = 0.5;  // datagram time-outs
  };
  // Work for the caller to do while this waits: `call` runs that often, and when a signal comes. It
  // may throw Error to end the wait.
  struct Meanwhile {
    std::function<void()> call;
    uint64_t every_us = UINT64_MAX;
  };
  // Joins the job. Throws Error.
  InlineClient(const Options& options, const Meanwhile& meanwhile);
  ~InlineClient();

  // Sums over all workers, in place; dense: sends zero blocks, too. codec: none, or natural, which
  // makes codes of floats; a job of INLINE_NATURAL always does. Throws Error; the job cannot
  // continue then.
  void sum(void* data, uint64_t count, DType dtype, bool dense, const Meanwhile& meanwhile,
           Codec codec = {});
  const SlotWorker& worker() const { return *worker_; }

 private:
  void join(const Meanwhile& meanwhile);
  void join_group(uint32_t address, uint16_t port);
  void say(uint8_t kind, uint8_t flags);
  void sum(InlineTensor& tensor, uint64_t what, const Meanwhile& meanwhile);
  void look_after_others();
  std::string why_give_up(uint64_t now) const;
  // Waits at most this long, and processes what has arrived.
  void step(uint64_t timeout_us, const Meanwhile& meanwhile);
  void take(const uint8_t* data, size_t size, bool for_all);
  void take_control(const uint8_t* data, size_t size);
  void send_all();
  bool look_for_refusals();
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
  uint32_t sums_ = 0;    // begun: the seed of a job of INLINE_NATURAL
  AwakeClock clock_;     // for all times here: a stop of this process is not the others' silence
  uint64_t heard_at_ = 0, asked_at_ = 0, called_at_ = 0;
  uint64_t fine_at_ = 0;   // when a result for all last came, or none was due yet
  bool in_doubt_ = false;  // when it last asked
  Refusals refusals_;      // of datagrams to the aggregator, since it was last heard
  uint32_t missing_ = 0;   // bits: workers that the aggregator waits for; 0: unknown
};

}  // namespace omnihvd
