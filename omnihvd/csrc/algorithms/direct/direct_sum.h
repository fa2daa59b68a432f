// Small sums of ranks on several hosts, in the caller's thread: direct_rounds.h says how. The
// calling thread owns the connections and moves the messages, so no thread has to wake another.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "algorithms/call.h"
#include "algorithms/direct/direct_rounds.h"
#include "algorithms/waiting.h"
#include "base/own_process.h"
#include "engine/polling.h"
#include "engine/session.h"
#include "engine/settings.h"
#include "transport/transport.h"

namespace omnihvd {

// One thread at a time; all ranks make the same calls in the same order.
class DirectSum final : private Transport::Handler, private DirectRounds::Outbox {
 public:
  // How large a sum the ranks of a job make directly, if they can connect; 0: none. Pure, the same
  // on all ranks.
  static uint64_t most_bytes(const Settings& agreed, const std::vector<std::string>& hosts);
  // Collective, where they make any. Null, on all ranks alike, if they do not come to direct
  // connections; rank 0 logs why. Throws Error if the exchange fails.
  static std::unique_ptr<DirectSum> create(Exchange& exchange, const Settings& agreed,
                                           const std::vector<std::string>& hosts);
  // Ranks that wait for this one see that it has left.
  ~DirectSum() override;

  // Collective; an allreduce of at most so many bytes. Returns how many blocks were non-zero on any
  // rank. Throws Error if a rank has failed, ended, makes another call, or is later than
  // OMNIHVD_TIMEOUT; `out` is then undefined, and each later call throws at once.
  uint64_t allreduce(const Call& call);
  // For each sum that it does not make, so that the ranks' calls keep the same numbers.
  void pass(const Call& call);
  // While this rank waits in a call that it passed: fails if another rank makes a direct sum there.
  // Returns why; empty: none does.
  std::string look();

  void set_timeout(double seconds) { timer_.set_timeout(seconds); }
  void abort(const std::string& why) noexcept;

 private:
  using Token = std::array<uint8_t, sizeof DirectHeader::token>;
  using Buffer = std::unique_ptr<uint64_t[]>;
  // One of the places that a process has for groups with direct sums. Throws Error if all are
  // taken.
  struct Lease {
    Lease();
    Lease(const Lease&) = delete;
    ~Lease();
  };
  struct Early {  // a message of a later call
    std::vector<uint64_t> words;
    size_t size;
    const DirectHeader& header() const {
      return *reinterpret_cast<const DirectHeader*>(words.data());
    }
  };

  DirectSum(const Exchange& exchange, const Settings& agreed, std::vector<std::string> hosts);

  void connect(const std::vector<std::string>& words);
  bool meet(Exchange& exchange);
  void on_message(const uint8_t* data, size_t size) override;
  void on_sent(uint64_t cookie) override;
  void on_peer_failed(PeerId peer, const std::string& reason) override;
  uint8_t* room() override;
  void send(int rank, size_t bytes) override;

  void hear(const DirectHeader& message, size_t size);
  void tell(DirectHeader::Kind kind, const std::string& text) noexcept;
  void settle();
  template <typename Done>
  void wait(Done done);
  void check();
  [[noreturn]] void fail(const std::string& why);
  std::string differs(const DirectHeader& theirs, SmallCall mine) const;
  std::string name_of(int rank) const;

  struct Peer {
    PeerId id = 0;
    std::string lost;  // why the connection is; empty: it is not
    int hellos = 0;
    uint32_t unsent = 0;  // messages
    bool left = false;
  };
  struct Outgoing {
    Buffer buffer;
    uint32_t unsent = 0;  // to so many ranks
  };

  const OwnProcess process_;
  const Lease lease_;
  const int rank_, ranks_;
  const std::vector<std::string> hosts_;
  SumTimer timer_;
  Polling polling_;
  Token token_{};
  DirectRounds rounds_;
  uint64_t number_ = 0;      // of this call
  bool under_way_ = false;   // this call is a direct sum, and not over
  bool was_direct_ = false;  // the last call
  SmallCall passed_;         // the last call that was not
  std::string failure_;      // empty: none
  std::vector<Peer> peers_;
  std::vector<Early> early_;
  std::vector<Buffer> free_;
  // By cookie: a message and the rank that it goes to.
  std::unordered_map<uint64_t, std::pair<std::shared_ptr<Outgoing>, int>> sending_;
  std::shared_ptr<Outgoing> room_;
  uint64_t cookie_ = 0;
  std::unique_ptr<Transport> transport_;  // destroyed first: it uses the other members
};

}  // namespace omnihvd
