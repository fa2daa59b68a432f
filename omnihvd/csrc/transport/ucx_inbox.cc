#include "transport/ucx_inbox.h"

#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"

namespace omnihvd {
namespace {

constexpr size_t kAlignment = 8;
constexpr size_t kSpareBuffers = 16;

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

}  // namespace

void UcxInbox::attach(ucp_worker_h worker, unsigned message_id) {
  worker_ = worker;
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = message_id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = [](void* arg, const void*, size_t, void* data, size_t size,
                 const ucp_am_recv_param_t* param) {
    const bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    return static_cast<UcxInbox*>(arg)->receive(data, size, rendezvous);
  };
  params.arg = this;
  check_ucx(ucp_worker_set_am_recv_handler(worker, &params), "UCX takes no active messages");
}

ucs_status_t UcxInbox::receive(void* data, size_t size, bool rendezvous) {
  if (closed_ || error_) return UCS_OK;
  if (!rendezvous && !held_ && queue_.empty() && aligned(data)) {
    try {
      handler_->on_message(static_cast<const uint8_t*>(data), size);
    } catch (...) {
      error_ = std::current_exception();
    }
    return UCS_OK;
  }
  Message message{take_buffer(size), size, receiving};
  if (!message.buffer.bytes) {
    log(LogLevel::error, "a message of ", size, " bytes is dropped: no memory");
    return UCS_ERR_NO_MEMORY;
  }
  queue_.push_back(std::move(message));
  if (rendezvous) return fetch(data, queue_.back());
  if (size > 0) std::memcpy(queue_.back().buffer.bytes.get(), data, size);
  queue_.back().state = whole;
  return UCS_OK;
}

ucs_status_t UcxInbox::fetch(void* descriptor, Message& message) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.datatype = ucp_dt_make_contig(1);
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* arg) {
    static_cast<Message*>(arg)->state = status == UCS_OK ? whole : lost;
    ucp_request_free(request);
  };
  params.user_data = &message;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, descriptor, message.buffer.bytes.get(), message.size, &params);
  if (!UCS_PTR_IS_PTR(request)) message.state = UCS_PTR_STATUS(request) == UCS_OK ? whole : lost;
  return UCS_INPROGRESS;  // the descriptor is UCX's again
}

bool UcxInbox::deliver() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  bool any = false;
  while (!queue_.empty() && queue_.front().state != receiving) {
    Message message = std::move(queue_.front());
    queue_.pop_front();
    any = true;
    // Lost: its sender failed, which is reported for those that are connected to it.
    if (message.state == whole) handler_->on_message(message.buffer.bytes.get(), message.size);
    if (spare_.size() < kSpareBuffers) spare_.push_back(std::move(message.buffer));
  }
  return any;
}

UcxInbox::Buffer UcxInbox::take_buffer(size_t size) {
  for (Buffer& buffer : spare_) {
    if (buffer.capacity < size) continue;
    std::swap(buffer, spare_.back());
    Buffer taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }
  const size_t capacity = size + 1;  // never none
  return {std::unique_ptr<uint8_t[]>(new (std::nothrow) uint8_t[capacity]), capacity};
}

}  // namespace omnihvd
