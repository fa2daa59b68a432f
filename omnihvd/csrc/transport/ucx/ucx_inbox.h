// Hands incoming active messages to the handler, in UCX's own buffer if possible.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_worker.h"

namespace omnihvd {

class UcxInbox {
 public:
  UcxInbox() = default;
  UcxInbox(const UcxInbox&) = delete;
  UcxInbox& operator=(const UcxInbox&) = delete;

  // Throws Error.
  void attach(ucp_worker_h worker, unsigned message_id) {
    ucp_am_handler_param_t params{};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                        UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = message_id;
    params.flags = UCP_AM_FLAG_WHOLE_MSG;
    params.arg = this;
    params.cb = [](void* arg, const void*, size_t, void* data, size_t size,
                   const ucp_am_recv_param_t* param) {
      if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {  // omnihvd never sends these
        log(LogLevel::info, "refused a rendezvous message of ", size, " bytes");
        return UCS_ERR_UNSUPPORTED;
      }
      static_cast<UcxInbox*>(arg)->receive(static_cast<const uint8_t*>(data), size);
      return UCS_OK;
    };
    check_ucx(ucp_worker_set_am_recv_handler(worker, &params), "UCX takes no active messages");
  }

  void set_handler(Transport::Handler* handler) { handler_ = handler; }
  void close() { closed_ = true; }  // from now on messages are dropped

  // Rethrows the handler's exception, which must not pass through UCX's frames.
  void rethrow() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void receive(const uint8_t* data, size_t size) {
    if (closed_ || error_) return;
    try {
      if (reinterpret_cast<uintptr_t>(data) % 8 == 0) {
        handler_->on_message(data, size);
      } else {
        aligned_.assign(data, data + size);
        handler_->on_message(aligned_.data(), size);
      }
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  Transport::Handler* handler_ = nullptr;
  bool closed_ = false;
  std::vector<uint8_t> aligned_;  // to 16 bytes, as operator new's memory is
  std::exception_ptr error_;
};

}  // namespace omnihvd
