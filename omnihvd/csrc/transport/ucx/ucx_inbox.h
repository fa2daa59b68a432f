// Hands incoming active messages to the handler, in UCX's own buffer if possible.
#pragma once

#include <ucp/api/ucp.h>

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
  void close() { closed_ = true; }  // from now on messages are dropped

  // Rethrows the handler's exception, which must not pass through UCX's frames.
  void rethrow();

 private:
  void receive(const uint8_t* data, size_t size);

  Transport::Handler* handler_ = nullptr;
  bool closed_ = false;
  std::vector<uint8_t> aligned_;  // to 16 bytes, as operator new's memory is
  std::exception_ptr error_;
};

}  // namespace omnihvd
