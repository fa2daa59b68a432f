// The part of a group that one progress thread carries in this process: its connections, and its
// collectives. Takes messages apart for the Router, which drives the protocol's state machines, and
// puts the frames that it sends into messages.
//
// Aggregators form a tree (protocol/seats.h), usually with one level. A worker or an aggregator
// sends its contribution to its parent, and results come down, in messages between processes that
// are peers in the tree. A process reports a failure to its peers, and they to theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/collective.h"
#include "engine/group_info.h"
#include "engine/seal.h"
#include "protocol/router.h"
#include "protocol/wire.h"
#include "transport/transport.h"

namespace omnihvd {

class GroupStream : private Router::Driver {
 public:
  // Calls `failed` once, with the reason, when the group cannot continue.
  using Failed = std::function<void(const std::string& reason)>;
  // Connects to its peers. Throws Error, and then leaves nothing behind.
  GroupStream(std::shared_ptr<const GroupInfo> info, uint32_t self, uint32_t stream,
              Transport& transport, Failed failed);
  ~GroupStream() override;

  uint64_t group() const { return info_->id; }
  uint32_t stream() const { return stream_; }

  // All members have joined. Before that nobody is told anything, as not all would hear it.
  void all_listen();
  void start(std::shared_ptr<Collective> collective);
  // Does a bounded amount of work besides messages; true if there was any.
  bool work();
  // Throws Error, without effect, if the message is not from a member.
  void on_message(const Header& header, const uint8_t* data, size_t size);
  static void on_sent(uint64_t cookie);
  void on_peer_failed(PeerId peer, const std::string& reason);  // perhaps a peer of other groups
  void fail(const std::string& reason, bool tell);
  // Warns of stalls and ends what exceeds its time-out. Called about twice a second while busy().
  void check_time(Clock::time_point now);
  // This process was stopped until now: that time does not count as lateness of others.
  void leave_out(Clock::duration asleep, Clock::time_point now);
  // Fails the group if messages of a member are missing though later ones have arrived.
  void check_gaps(Clock::time_point now);
  // Tells what this rank does on the communicator meanwhile, outside of this group ("which is in
  // ..."); empty: nothing. Used in messages. Any thread.
  void set_elsewhere(std::string what);
  // Until the first call the time-out from the settings holds; 0: none. Any thread.
  void set_timeout(double seconds) { timeout_s_ = seconds; }
  bool busy() const { return !router_.workers().empty() || !router_.aggregators().empty(); }

  // True for a dedicated aggregator's group that nobody will use again.
  bool deserted() const;
  // Says good-bye; afterwards it takes no messages, and the object may be destroyed.
  void leave();

 private:
  struct WorkerTask;
  struct AggregatorTask;
  struct Outgoing;

  // The Router's driver.
  void send_up(uint32_t node, uint64_t sequence, const Layout& layout, const Seat& seat,
               const Frame& frame, const Router::Kept& kept) override;
  void send_down(const std::vector<uint32_t>& nodes, const Router::AggregatorPart& part,
                 const Router::Kept& result) override;
  std::shared_ptr<Router::AggregatorPart> begin(uint64_t sequence, const Seat& seat,
                                                const Shape& shape, uint32_t node) override;
  void disagree(const Router::AggregatorPart& part, const Shape& shape, uint32_t node) override;
  Router::Kept keep(Router::AggregatorPart& part, const Frame& frame) override;
  Router::Kept pass_on(const Router::AggregatorPart& part, const Frame& frame,
                       const Router::Kept& arrived) override;
  void contributes(Router::WorkerPart& part, uint32_t aggregator, const Frame& frame) override;
  void takes_result(Router::WorkerPart& part, uint32_t aggregator, const Frame& frame) override;
  void took_result(Router::WorkerPart& part) override;
  void takes_contribution(Router::AggregatorPart& part, const Frame& frame) override;
  void takes_result(Router::AggregatorPart& part) override;
  void gathered(Router::AggregatorPart& part, const Frame& frame) override;

  static WorkerTask& task_of(Router::WorkerPart& part);
  static AggregatorTask& task_of(Router::AggregatorPart& part);
  void on_contribution(MessageReader& reader);
  void on_result(MessageReader& reader);
  void on_leave(uint32_t node);
  Seat next_seat(MessageReader& reader, uint32_t aggregator) const;
  void trace_round(WorkerTask& task, uint32_t aggregator, const Frame& frame);
  void trace_gathering(AggregatorTask& task, const Frame& frame);
  void refer_to_worker(Outgoing& out, uint64_t sequence);
  void finish_if_done(WorkerTask& task);
  void detach_all();
  void disconnect_all() {
    for (const Peer& peer : peers_)
      if (peer.connected) transport_.disconnect(peer.id);
  }
  bool fail_if_overdue(uint64_t sequence, const Shape& shape, Clock::duration waited);
  void warn_of_stalls(Clock::time_point now);
  struct Awaited;
  Awaited awaited(uint64_t sequence) const;
  std::set<uint32_t> members_awaited(uint64_t sequence, uint32_t level) const;
  std::set<uint32_t> aggregators_awaited(uint64_t sequence) const;
  std::string names_of(const std::set<uint32_t>& nodes, bool with_doing = false) const;
  std::string words_of(const std::exception& why) const;

  Outgoing& open(uint32_t node, Kind kind, uint64_t sequence, const Shape* shape, size_t bytes);
  void flush(uint32_t node);
  void flush_all();
  void say(Kind kind, const std::string& text);
  void sent(Outgoing* out);

  const std::shared_ptr<const GroupInfo> info_;
  const uint32_t self_, stream_;
  // The share that is summed in our worker's tensor. Only with one level: there a result's memory
  // is not needed longer than the worker's.
  std::optional<uint32_t> home_share_;
  Transport& transport_;
  Failed failed_;

  struct Peer {
    PeerId id = 0;
    std::unique_ptr<Seal> in, out;
    bool connected = false;
    bool left = false;  // said good-bye
  };
  std::vector<Peer> peers_;                           // [node]
  Router router_;                                     // outlives messages, which keep its frames
  std::vector<std::unique_ptr<Outgoing>> outgoing_;   // [node], being filled
  std::vector<std::unique_ptr<Outgoing>> under_way_;  // given to the transport
  std::vector<std::unique_ptr<Outgoing>> pool_;

  std::optional<std::string> failure_;
  bool is_to_tell_ = false;  // the peers must be told of the failure
  Clock::time_point failed_at_;
  bool all_listen_ = false, left_ = false;
  Frame scratch_;
  std::vector<uint8_t> plain_;
  FrameBytes frame_bytes_;  // scratch

  mutable std::mutex elsewhere_mutex_;
  std::string elsewhere_;
  std::atomic<double> timeout_s_;
};

}  // namespace omnihvd
