// UCX's context and worker, with our settings.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace omnihvd {

class UcxWorker {
 public:
  UcxWorker();  // throws Error
  ~UcxWorker() {
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  operator ucp_worker_h() const { return worker_; }
  int event_fd() const;
  std::string address(unsigned flags = 0) const;  // UCP_WORKER_ADDRESS_FLAG_*
  bool has_shared_memory() const;                 // for messages between processes
  std::string describe() const;

 private:
  ucs_status_t open(const char* transports);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
};

std::string ucx_version();  // "1.22"

// UCX's text for a status, and its frequent cause.
std::string reason_of(ucs_status_t status);

std::string transports_of(ucp_ep_h endpoint);  // "tcp/eth0+..."; empty: it has failed

// Throws Error: "<what>: <reason_of(status)>".
void check_ucx(ucs_status_t status, const char* what);

}  // namespace omnihvd
