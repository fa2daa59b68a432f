// Incoming active messages, in the order in which they arrived.
//
// A message that came whole (eager) is handed on at once, in UCX's buffer. One that must be fetched
// (rendezvous) takes its place in a queue and is fetched into a buffer of ours; what arrives before
// that is done queues up behind it, so that order is kept.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx_worker.h"

namespace omnihvd {

class UcxInbox {
 public:
  UcxInbox() = default;
  UcxInbox(const UcxInbox&) = delete;
  UcxInbox& operator=(const UcxInbox&) = delete;

  void attach(ucp_worker_h worker, unsigned message_id);
  void set_handler(Transport::Handler* handler) { handler_ = handler; }
  void hold(bool on) { held_ = on; }  // while on, all messages queue up
  void close() { closed_ = true; }    // from now on messages are dropped

  bool ready() const { return error_ || (!queue_.empty() && queue_.front().state != receiving); }
  // Hands on what is ready, and throws what the handler threw where it could not pass.
  bool deliver();

 private:
  struct Buffer {
    std::unique_ptr<uint8_t[]> bytes;
    size_t capacity = 0;
  };
  enum State { receiving, whole, lost };
  struct Message {
    Buffer buffer;
    size_t size = 0;
    State state = receiving;
  };

  ucs_status_t receive(void* data, size_t size, bool rendezvous);
  ucs_status_t fetch(void* descriptor, Message& message);
  Buffer take_buffer(size_t size);  // of no bytes when there is no memory

  ucp_worker_h worker_ = nullptr;
  Transport::Handler* handler_ = nullptr;
  bool held_ = false;
  bool closed_ = false;
  std::deque<Message> queue_;
  std::vector<Buffer> spare_;
  std::exception_ptr error_;
};

}  // namespace omnihvd
