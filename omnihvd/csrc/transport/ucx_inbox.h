// Hands incoming active messages to the handler, in UCX's own buffer wherever that will do.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <exception>
#include <vector>

#include "transport/transport.h"

namespace omnihvd {

class UcxInbox {
 public:
  UcxInbox() = default;
  UcxInbox(const UcxInbox&) = delete;
  UcxInbox& operator=(const UcxInbox&) = delete;

  void attach(ucp_worker_h worker, unsigned message_id);  // throws Error
  void set_handler(Transport::Handler* handler) { handler_ = handler; }
  void hold(bool on) { held_ = on; }  // while on, messages are kept for deliver()
  void close() { closed_ = true; }    // from now on they are dropped

  bool empty() const { return kept_.empty(); }
  bool deliver();  // false: there was nothing
  // Throws what the handler threw: it could not pass UCX's frames.
  void rethrow();

 private:
  // Vectors' memory is aligned to 16 bytes, as operator new's is.
  using Bytes = std::vector<uint8_t>;

  void receive(const uint8_t* data, size_t size);

  Transport::Handler* handler_ = nullptr;
  bool held_ = false;
  bool closed_ = false;
  std::deque<Bytes> kept_;
  Bytes aligned_;
  std::exception_ptr error_;
};

}  // namespace omnihvd
