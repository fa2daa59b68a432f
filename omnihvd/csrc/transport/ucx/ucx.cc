// UCX active messages as a Transport: one message is one active message, all of it payload.
//
// UCX makes callbacks from within its own C frames, where nothing may be thrown, and sometimes from
// within a send. So callbacks only note what happened, and dispatch() tells the handler. The
// exception is an incoming message: the handler sees it in UCX's own buffer, without a copy.
//
// All messages are eager. With rendezvous a receiver would have to fetch large messages and queue
// later ones to preserve order. If the sender then dies, UCX 1.22 never ends the fetch. Rendezvous
// was also no faster, up to 1 MiB over TCP and shared memory.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "transport/file_descriptor.h"
#include "transport/process_watch.h"
#include "transport/registry.h"
#include "transport/ucx/ucx_address.h"
#include "transport/ucx/ucx_inbox.h"
#include "transport/ucx/ucx_sends.h"
#include "transport/ucx/ucx_system.h"
#include "transport/ucx/ucx_worker.h"

namespace omnihvd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr unsigned kMessageId = 0;
constexpr milliseconds kCloseLimit{1000};  // in the destructor, after the flush
constexpr char kEnded[] = "the process has ended";

class UcxTransport final : public Transport {
 public:
  UcxTransport();
  ~UcxTransport() override;
  void hurry() override { hurries_ = true; }

  void set_handler(Handler* handler) override { inbox_.set_handler(handler_ = handler); }
  std::string address() const override { return encode_address(self_); }
  PeerId connect(const std::string& address) override;
  // The endpoint stays open. If only one side closes, UCX keeps that endpoint until the end, with
  // its socket or shared memory, and the other side may take the close for a failure.
  void disconnect(PeerId peer) override { --peers_.at(peer).users; }
  void send(PeerId peer, const Slice* slices, size_t count, uint64_t cookie) override;
  void detach(uint64_t cookie) override;
  bool progress() override;
  void wait(int timeout_ms) override;
  // Fails only if the counter is full: then the thread is awake anyway.
  void wake() override { eventfd_write(wake_, 1); }
  bool is_local(const std::string& address) const override {
    return share_memory(self_, decode_address(address));
  }
  std::string describe() const override;

 private:
  struct Peer {
    UcxTransport* owner;
    PeerId id;
    std::string address, name;
    ucp_ep_h endpoint = nullptr;
    uint32_t users = 1;  // connect() less disconnect()
    size_t unsent = 0;
    bool failed = false;
  };
  void fail(Peer& peer, const std::string& reason);
  void finish(UcxSend& send, ucs_status_t status);
  void open_endpoint(Peer& peer, const std::string& worker_address);
  void close_endpoint(Peer& peer);
  void flush();
  bool dispatch();
  void forget_failed();
  template <typename Done>
  bool progress_until(Done done, milliseconds limit);

  Handler* handler_ = nullptr;
  UcxInbox inbox_;
  ProcessWatch watch_;
  FileDescriptor wake_;
  FileDescriptor epoll_;  // the worker's events, wake_ and watch_

  std::unordered_map<PeerId, Peer> peers_;
  std::unordered_map<std::string, PeerId> by_address_;  // except failed peers
  PeerId next_peer_ = 0;
  std::vector<PeerId> failed_;  // peers to be forgotten
  UcxSends sends_;
  size_t flushing_ = 0, closing_ = 0;  // endpoints
  bool hurries_ = false;

  // For the handler.
  std::deque<std::pair<PeerId, std::string>> failures_;
  std::deque<uint64_t> sent_;

  UcxWorker worker_;  // after all that its callbacks use
  const UcxAddress self_;
};

void add_to_epoll(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    throw Error(std::string("epoll_ctl failed: ") + std::strerror(errno));
}

// For a request that takes one from the count when it ends.
ucp_request_param_t counted_down(size_t* count) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = [](void* request, ucs_status_t, void* arg) {
    --*static_cast<size_t*>(arg);
    ucp_request_free(request);
  };
  params.user_data = count;
  return params;
}

UcxTransport::UcxTransport()
    : wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd"),
      epoll_(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"),
      self_{this_owner(), geteuid(), ucx_version(),
            worker_.address(worker_.has_shared_memory() ? 0 : UCP_WORKER_ADDRESS_FLAG_NET_ONLY),
            worker_.address(UCP_WORKER_ADDRESS_FLAG_NET_ONLY)} {
  inbox_.attach(worker_, kMessageId);
  add_to_epoll(epoll_, worker_.event_fd());
  add_to_epoll(epoll_, wake_);
  add_to_epoll(epoll_, watch_.fd());
}

UcxTransport::~UcxTransport() {
  inbox_.close();
  if (!hurries_) flush();
  for (auto& [id, peer] : peers_) {
    if (peer.endpoint) close_endpoint(peer);
    peer.failed = true;
  }
  progress_until([this] { return closing_ == 0; }, kCloseLimit);
}

PeerId UcxTransport::connect(const std::string& bytes) {
  const auto known = by_address_.find(bytes);
  if (known != by_address_.end()) {
    ++peers_.at(known->second).users;
    return known->second;
  }
  const UcxAddress address = decode_address(bytes);
  const PeerId id = next_peer_++;
  Peer& peer = peers_.emplace(id, Peer{this, id, bytes, name_of(address)}).first->second;
  by_address_[bytes] = id;
  try {
    const bool by_memory = share_memory(self_, address);
    // Between UCX 1.18 and 1.22 TCP messages get lost, and neither side notices.
    if (!by_memory && address.ucx != self_.ucx)
      throw Error("it has UCX " + address.ucx + ", and this process UCX " + self_.ucx +
                  ", which do not understand each other: import omnihvd before horovod, because "
                  "its MPI may bring a UCX of its own, and install the same UCX on all hosts");
    if (watch_.add(id, address.process))
      open_endpoint(peer, by_memory ? address.worker : address.worker_wide);
    else
      fail(peer, kEnded);
  } catch (const Error& why) {
    const std::string text = "cannot connect to " + peer.name + ": " + why.what();
    watch_.remove(id);
    by_address_.erase(bytes);
    peers_.erase(id);
    throw Error(text);
  }
  return id;
}

void UcxTransport::open_endpoint(Peer& peer, const std::string& worker_address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
    Peer& peer = *static_cast<Peer*>(arg);
    peer.owner->fail(peer, reason_of(status));
  };
  params.err_handler.arg = &peer;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return;
  peer.endpoint = nullptr;
  throw Error(reason_of(status) + ". Here is " + worker_.describe() +
              "; UCX_TLS and UCX_NET_DEVICES, on all hosts, choose among what there is");
}

void UcxTransport::close_endpoint(Peer& peer) {
  ucp_request_param_t params = counted_down(&closing_);
  params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  if (UCS_PTR_IS_PTR(ucp_ep_close_nbx(peer.endpoint, &params))) ++closing_;
  peer.endpoint = nullptr;
}

// Flushes all endpoints at once.
void UcxTransport::flush() {
  const ucp_request_param_t params = counted_down(&flushing_);
  for (auto& [id, peer] : peers_)
    if (peer.endpoint && !peer.failed && UCS_PTR_IS_PTR(ucp_ep_flush_nbx(peer.endpoint, &params)))
      ++flushing_;
  const auto flushed = [this] {
    for (const PeerId id : watch_.ended(true))  // its messages will never be taken
      if (peers_.at(id).endpoint) close_endpoint(peers_.at(id));
    return flushing_ == 0;
  };
  if (!progress_until(flushed, kFlush.duration()))
    log(LogLevel::info, "not all peers have taken their last messages within ", kFlush.text());
}

// Makes progress without calling the handler.
template <typename Done>
bool UcxTransport::progress_until(Done done, milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while (!done() && Clock::now() < end) {
    if (ucp_worker_progress(worker_) != 0) continue;
    if (ucp_worker_arm(worker_) != UCS_OK) continue;
    pollfd events{worker_.event_fd(), POLLIN, 0};
    poll(&events, 1, 10);
  }
  return done();
}

void UcxTransport::send(PeerId id, const Slice* slices, size_t count, uint64_t cookie) {
  Peer& peer = peers_.at(id);
  if (peer.failed) {
    sent_.push_back(cookie);
    return;
  }
  UcxSend& send = sends_.take(&peer, cookie, slices, count);
  ++peer.unsent;

  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = [](void* request, ucs_status_t status, void* arg) {
    UcxSend& send = *static_cast<UcxSend*>(arg);
    static_cast<Peer*>(send.peer)->owner->finish(send, status);
    ucp_request_free(request);
  };
  params.user_data = &send;
  // Even a single slice goes as an IOV, so that detach() can replace it.
  params.datatype = ucp_dt_make_iov();
  const ucs_status_ptr_t request = ucp_am_send_nbx(peer.endpoint, kMessageId, nullptr, 0,
                                                   send.iov.data(), send.iov.size(), &params);
  if (!UCS_PTR_IS_PTR(request)) finish(send, UCS_PTR_STATUS(request));
}

void UcxTransport::finish(UcxSend& send, ucs_status_t status) {
  Peer& peer = *static_cast<Peer*>(send.peer);
  if (status != UCS_OK) fail(peer, reason_of(status));
  --peer.unsent;
  if (!send.detached) sent_.push_back(send.cookie);
  sends_.give_back(send);
}

void UcxTransport::detach(uint64_t cookie) {
  const auto over = std::find(sent_.begin(), sent_.end(), cookie);
  if (over != sent_.end()) {
    sent_.erase(over);
    return;
  }
  if (UcxSend* send = sends_.find(cookie)) send->detach();
}

void UcxTransport::fail(Peer& peer, const std::string& reason) {
  if (peer.failed) return;
  peer.failed = true;
  by_address_.erase(peer.address);
  failures_.emplace_back(peer.id, peer.name + ": " + reason);
}

bool UcxTransport::progress() {
  bool moved = ucp_worker_progress(worker_) != 0;
  inbox_.rethrow();
  for (const PeerId id : watch_.ended(!moved)) fail(peers_.at(id), kEnded);
  shut_silent_connections();
  if (dispatch()) moved = true;
  if (!failed_.empty()) forget_failed();
  return moved;
}

// Tells the handler what was noted before the call: first failures, then completed sends.
bool UcxTransport::dispatch() {
  bool any = false;
  for (size_t count = failures_.size(); count > 0; --count) {
    const auto [id, reason] = std::move(failures_.front());
    failures_.pop_front();
    watch_.remove(id);
    Peer& peer = peers_.at(id);
    if (peer.endpoint) close_endpoint(peer);  // ends its sends
    if (peer.users > 0) handler_->on_peer_failed(id, reason);
    failed_.push_back(id);
    any = true;
  }
  for (size_t count = sent_.size(); count > 0 && !sent_.empty(); --count) {
    const uint64_t cookie = sent_.front();
    sent_.pop_front();
    handler_->on_sent(cookie);
    any = true;
  }
  return any;
}

// Forgets failed peers once neither UCX nor a caller can refer to them.
void UcxTransport::forget_failed() {
  if (closing_ > 0) return;
  const auto done = [this](PeerId id) {
    const Peer& peer = peers_.at(id);
    if (peer.users > 0 || peer.unsent > 0) return false;
    peers_.erase(id);
    return true;
  };
  failed_.erase(std::remove_if(failed_.begin(), failed_.end(), done), failed_.end());
}

void UcxTransport::wait(int timeout_ms) {
  if (!failures_.empty() || !sent_.empty()) return;
  const ucs_status_t status = ucp_worker_arm(worker_);
  if (status == UCS_ERR_BUSY) return;
  check_ucx(status, "UCX cannot wait for events");
  epoll_event events[3];
  const int count = epoll_wait(epoll_, events, 3, watch_.limit(timeout_ms));
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == wake_) {
      uint64_t wakes;
      [[maybe_unused]] const ssize_t n = read(wake_, &wakes, sizeof wakes);  // resets it
    } else if (events[i].data.fd == watch_.fd()) {
      watch_.look_now();
    }
  }
}

std::string UcxTransport::describe() const {
  std::map<std::string, int> used;
  for (const auto& [id, peer] : peers_) {
    if (peer.failed) continue;
    const std::string names = transports_of(peer.endpoint);
    if (!names.empty()) ++used[names];
  }
  std::string text = worker_.describe();
  for (const auto& [names, count] : used)
    text += "; " + std::to_string(count) + " connected over " + names;
  return text;
}

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(const TransportOptions&) {
  return std::make_unique<UcxTransport>();
}

}  // namespace omnihvd
