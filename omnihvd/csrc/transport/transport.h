// Moves messages between the progress threads of the processes of a job. Knows nothing of groups,
// tensors or ranks.
//
// One progress thread owns a Transport and makes every call, except wake(). Between two transports
// each message arrives once, whole, unchanged, and in order, or the peer is reported as failed.
//
// A connected peer's failure is also noticed by a side that only waits for messages:
//   - its process ended, however: at once on the same host (Linux 5.3 and later) and over TCP, even
//     if a child of it lives on;
//   - its host or the network vanished: after about 30 s over TCP;
//   - it was destroyed, but its process lives on: over TCP, not over shared memory.
// A stopped process has not failed: its messages wait. A process that is killed while it writes
// into the shared memory of another one may block messages from third processes of that host: a
// Transport that has lost a peer on its own host should not be used for new connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/slice.h"

namespace omnihvd {

using PeerId = uint32_t;

class Transport {
 public:
  // progress() makes all these calls, on the progress thread. They may call send().
  class Handler {
   public:
    virtual ~Handler() = default;
    // `data` lives until the call returns and is aligned to 8 bytes. Do not trust it: anyone with
    // our address can send.
    virtual void on_message(const uint8_t* data, size_t size) = 0;
    // The caller may reuse the buffers of the send with this cookie. Also called, once, for each
    // send that a peer's failure (reported first) cut short, but not for a detached one.
    virtual void on_sent(uint64_t cookie) = 0;
    // The peer is gone. Called once for each connected peer. Later sends to it are dropped (on_sent
    // is called).
    virtual void on_peer_failed(PeerId peer, const std::string& reason) = 0;
  };

  // Gives sends under way a bounded time to complete, the same for all peers.
  virtual ~Transport() = default;
  // They need none: the peers may make no progress any more.
  virtual void hurry() {}
  virtual void set_handler(Handler* handler) = 0;  // not owned; before the first progress()

  // The address that a peer needs to connect() to this transport: opaque bytes, a few hundred.
  virtual std::string address() const = 0;

  // Begins to connect; messages may be sent at once. Throws Error if the address is invalid, or if
  // no connection can be opened. Each direction has its own connect(): A connects to B to send to
  // B. Connecting to a connected address returns the same PeerId and counts the use, so all users
  // of a PeerId learn of its failure together.
  virtual PeerId connect(const std::string& address) = 0;
  // Undoes one connect(). Never blocks: messages under way still go out. The connection stays for
  // the next connect(), until the peer's process or transport ends. So there is one connection for
  // each living process that was ever a peer.
  virtual void disconnect(PeerId peer) = 0;

  // Sends the concatenation of the slices as one message. The memory of the slices must stay
  // unchanged until on_sent(cookie); the array itself is read before the call returns. Never
  // blocks, and never calls the handler before it returns.
  virtual void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) = 0;

  // Gives the buffers of a send under way back to the caller at once: the rest of the message goes
  // out from a copy, and on_sent(cookie) is not called.
  virtual void detach(uint64_t cookie) = 0;

  // Makes progress without waiting. Returns true if anything happened.
  virtual bool progress() = 0;
  // Sleeps without using the CPU until there is progress to make, wake() is called, or the time is
  // over (timeout_ms < 0: no limit).
  virtual void wait(int timeout_ms) = 0;
  virtual void wake() = 0;  // any thread; a wake() before wait() is not lost

  // Whether the transport with this address is on this host and reached through the host's memory.
  // Both sides get the same answer. Throws Error if the address is invalid.
  virtual bool is_local(const std::string& address) const = 0;

  virtual std::string describe() const = 0;  // for `omnihvd check`: name, version, devices
};

// The settings that a transport may need.
struct TransportOptions {
  std::string secret;     // of the job; empty: none
  std::string interface;  // the network interface to use; empty: any
  uint32_t mtu = 0;       // bytes of a packet; 0: as interfaces and routes have it
};

}  // namespace omnihvd
