// Moves messages between the engine threads of the processes of a job. Knows nothing of groups,
// tensors or ranks.
//
// One engine thread owns a Transport and makes every call, except wake(). Messages between two
// transports arrive once, whole, unchanged, and in order, or the peer is reported as failed.
//
// A peer's failure is noticed also by a side that only waits for messages, if it is connected:
//   - its process ended, however: at once on the same host (Linux 5.3 and later) and over TCP, even
//     if a child of it lives on;
//   - its host or the network vanished: after about 30 s over TCP;
//   - it was destroyed, but its process lives on: over TCP, not over shared memory.
// A process that is stopped has not failed: its messages wait.
// A process that is killed while it writes into the shared memory of another one can hold up what
// third processes of that host send there: a Transport that has lost a peer of its own host should
// not be used for new connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/slice.h"

namespace omnihvd {

using PeerId = uint32_t;

class Transport {
 public:
  // All are called from within progress(), on the engine thread. They may call send().
  class Handler {
   public:
    virtual ~Handler() = default;
    // `data` lives until the call returns, is aligned to 8 bytes, and is not to be trusted: whoever
    // has our address can send.
    virtual void on_message(const uint8_t* data, size_t size) = 0;
    // The buffers of the send with this cookie are the caller's again. Also called, once, for each
    // send that a peer's failure (reported first) cut short; not for one that was detached.
    virtual void on_sent(uint64_t cookie) = 0;
    // The peer is gone; called once per peer, if it is connected. Later sends to it are dropped
    // (on_sent is called).
    virtual void on_peer_failed(PeerId peer, const std::string& reason) = 0;
  };

  // Gives what is under way a bounded time, the same for all peers, to go out.
  virtual ~Transport() = default;
  virtual void set_handler(Handler* handler) = 0;  // not owned; before the first progress()

  // What a peer must know to connect() to this transport: opaque bytes, a few hundred.
  virtual std::string address() const = 0;

  // Begins to connect; messages may be sent at once. Throws Error when the address is no address,
  // and when nothing can be opened. Each direction has its own connect(): A connects to B to send
  // to B. An address that is connected already gives the same PeerId, which is counted; so whoever
  // shares a PeerId learns of its failure together.
  virtual PeerId connect(const std::string& address) = 0;
  // Undoes one connect(). Never blocks: what is under way still goes out. The connection stays for
  // the next connect(), until the peer's process or transport ends: there is one for each process
  // that was ever a peer and lives.
  virtual void disconnect(PeerId peer) = 0;

  // Sends the concatenation of the slices as one message. The slices' memory must live unchanged
  // until on_sent(cookie); the array itself is read before the call returns. Never blocks, and
  // never calls the handler before it returns.
  virtual void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) = 0;

  // The buffers of a send under way are the caller's from now on: the rest goes out from a copy,
  // and on_sent(cookie) is not called.
  virtual void detach(uint64_t cookie) = 0;

  // Moves what can be moved without waiting; true when anything happened.
  virtual bool progress() = 0;
  // Sleeps, without using the CPU, until there is something to progress, wake() is called, or the
  // time is over (timeout_ms < 0: no limit).
  virtual void wait(int timeout_ms) = 0;
  virtual void wake() = 0;  // any thread; a wake() before wait() is not lost

  // The transport with this address is on this host, and what goes there stays in its memory. Both
  // sides see it alike. Throws Error when it is no address.
  virtual bool is_local(const std::string& address) const = 0;

  virtual std::string describe() const = 0;  // for `omnihvd check`: name, version, devices
};

enum class TransportKind { ucx, udp };

struct TransportOptions {
  TransportKind kind = TransportKind::ucx;
  // Of UDP only.
  std::string secret;     // of the job; empty: none
  std::string interface;  // the one to use; empty: any
  uint32_t mtu = 0;       // bytes of a packet; 0: as interfaces and routes have it
  // For tests of UDP.
  std::function<uint64_t()> clock = nullptr;  // microseconds; none: the steady clock
  bool watches = true;  // false: processes of this host are as those of other hosts
};

// UCX active messages: TCP between hosts, shared memory within one, RDMA where UCX finds it.
std::unique_ptr<Transport> make_ucx_transport();
// Datagrams that are repeated where the network loses them.
std::unique_ptr<Transport> make_udp_transport(const TransportOptions& options);

// Throws Error where it cannot be had.
inline std::unique_ptr<Transport> make_transport(const TransportOptions& options) {
  return options.kind == TransportKind::udp ? make_udp_transport(options) : make_ucx_transport();
}

}  // namespace omnihvd
