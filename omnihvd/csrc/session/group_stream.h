// One stream of one group in this process: its connections, and the collectives that it carries.
// Lives on one engine thread. Takes messages apart, feeds the protocol's state machines, and puts
// what they say into messages.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "protocol/aggregator.h"
#include "protocol/wire.h"
#include "protocol/worker.h"
#include "session/collective.h"
#include "session/group_info.h"
#include "session/seal.h"
#include "transport/transport.h"

namespace omnihvd {

class GroupStream {
 public:
  // `failed` is told once, with the reason, when the group can go on no more.
  using Failed = std::function<void(const std::string& reason)>;
  // Connects to all other nodes. Throws Error, and leaves nothing behind then.
  GroupStream(std::shared_ptr<const GroupInfo> info, uint32_t self, uint32_t stream,
              Transport& transport, Failed failed);
  ~GroupStream();

  uint64_t group() const { return info_->id; }
  uint32_t stream() const { return stream_; }

  void start(std::shared_ptr<Collective> collective);
  // Does a bounded piece of what there is to do besides messages; true if there was something.
  bool work();
  // Throws Error when it is none of a member, and without effect.
  void on_message(const Header& header, const uint8_t* data, size_t size);
  static void on_sent(uint64_t cookie);
  void on_peer_failed(PeerId peer, const std::string& reason);  // which may be none of ours
  // Fails what is under way and all that follows; tells the other nodes unless one of them told us.
  void fail(const std::string& reason, bool tell);
  // Warns of stalls and ends what takes too long. Called about twice a second while busy().
  void check_time(Clock::time_point now);
  // Fails the group when messages of a member stay away though later ones have come.
  void check_gaps(Clock::time_point now);
  // What this rank does on the communicator meanwhile, outside of this group ("which is in ...");
  // empty: nothing. For messages to people. Any thread.
  void set_elsewhere(std::string what);
  bool busy() const { return !workers_.empty() || !aggregators_.empty(); }

  // A dedicated aggregator's group that nobody will use again.
  bool deserted() const;
  // Says good-bye; afterwards nothing is taken, and the object may go.
  void leave();

 private:
  struct WorkerTask;
  struct AggregatorTask;
  struct Outgoing;
  struct SelfResult {  // from our own aggregator to our own worker: no message
    std::shared_ptr<AggregatorTask> task;
    Frame frame;
  };

  struct Release {
    std::shared_ptr<AggregatorTask> task;
    uint32_t slot, round;
  };

  void on_contribution(MessageReader& reader);
  void on_result(MessageReader& reader);
  void on_leave(uint32_t node);
  void take_result(uint64_t sequence, uint32_t aggregator, const Frame& frame);
  std::shared_ptr<AggregatorTask> aggregator_task(uint64_t sequence, const Shape* shape,
                                                  uint32_t worker);
  void start_slots(WorkerTask& task);
  void contribute(WorkerTask& task, uint32_t aggregator, const Frame& frame, bool first);
  void take_contribution(AggregatorTask& task, uint32_t worker, const Frame& frame);
  void trace_round(WorkerTask& task, uint32_t aggregator, const Frame& frame);
  void trace_gathering(AggregatorTask& task, const Frame& frame);
  static void count_coded(const Layout& layout, const Frame& frame, uint64_t receivers);
  void refer_to_worker(Outgoing& out, uint64_t sequence);
  void publish(AggregatorTask& task, const Frame& frame);
  void release(const std::shared_ptr<AggregatorTask>& task, uint32_t slot, uint32_t round);
  void retire(AggregatorTask& task);
  void finish_if_done(WorkerTask& task);
  void detach_all();
  void disconnect_all();
  bool fail_if_overdue(uint64_t sequence, const Shape& shape, Clock::duration waited);
  void warn_of_stalls(Clock::time_point now);
  struct Awaited;
  Awaited awaited(uint64_t sequence) const;
  std::optional<uint32_t> sender_of(const Header& header) const;

  Outgoing& open(uint32_t node, Kind kind, uint64_t sequence, const Shape* shape, size_t bytes);
  void flush(uint32_t node);
  void flush_all();
  void say(Kind kind, const std::string& text);
  std::unique_ptr<Outgoing> take_back(Outgoing* out);
  void sent(std::unique_ptr<Outgoing> out);

  const std::shared_ptr<const GroupInfo> info_;
  const uint32_t self_, stream_;
  std::optional<uint32_t> own_aggregator_;  // its index
  Transport& transport_;
  Failed failed_;

  struct Peer {
    PeerId id = 0;
    std::unique_ptr<Seal> in, out;
    bool connected = false;
    bool left = false;  // said good-bye
  };
  std::vector<Peer> peers_;                           // [node]
  std::vector<std::unique_ptr<Outgoing>> outgoing_;   // [node], being filled
  std::vector<std::unique_ptr<Outgoing>> under_way_;  // given to the transport
  std::vector<std::unique_ptr<Outgoing>> pool_;

  std::map<uint64_t, std::shared_ptr<WorkerTask>> workers_;          // by sequence
  std::map<uint64_t, std::shared_ptr<AggregatorTask>> aggregators_;  // by sequence
  std::deque<SelfResult> self_results_;
  std::vector<Release> releases_;  // due, but not from within the state machine's own call

  std::optional<std::string> failure_;
  bool left_ = false;
  Frame scratch_, reply_;
  std::vector<uint8_t> plain_;
  FrameBytes frame_bytes_;  // scratch

  mutable std::mutex elsewhere_mutex_;
  std::string elsewhere_;
};

}  // namespace omnihvd
