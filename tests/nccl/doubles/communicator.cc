#include "communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

struct CUctx_st;
extern "C" {
int cuCtxGetCurrent(CUctx_st** context);
void* double_host_of(uint64_t device_address, size_t bytes);
void double_queue(CUstream_st* stream, void (*work)(void*), void* argument);
void double_queue_after(CUstream_st* stream, CUstream_st* other);
void double_spend(uint64_t ns);
}

int ncclComm::current_device() {
  CUctx_st* context = nullptr;
  cuCtxGetCurrent(&context);
  if (context == nullptr) double_die("a communicator was made without a current device");
  int device;
  std::memcpy(&device, context, sizeof device);
  return device;
}

namespace doubles {
namespace {

std::mutex comms_mutex;
std::map<ncclComm*, Shared>& comms() {
  static auto& map = *new std::map<ncclComm*, Shared>;
  return map;
}
thread_local int depth = 0;
struct Queued {
  Shared comm;
  std::function<void()> work;
};
thread_local std::vector<Queued> group;

Result carry_out(std::vector<Queued> calls) {
  const auto early = [](const Queued& call) { return call.comm->returns_early; };
  if (std::none_of(calls.begin(), calls.end(), early)) {
    for (const Queued& call : calls) call.work();
    return success;
  }
  if (!std::all_of(calls.begin(), calls.end(), early))
    double_die("blocking and non-blocking communicators in one group");
  for (const Queued& call : calls) ++call.comm->pending;
  std::thread([calls = std::move(calls)] {
    static const char* const delay = std::getenv("NCCL_DOUBLE_DELAY_US");
    usleep(delay != nullptr ? unsigned(std::atoi(delay)) : 3000);
    for (const Queued& call : calls) {
      call.work();
      --call.comm->pending;
    }
  }).detach();
  return in_progress;
}

// NCCL_DOUBLE_NS=base,per_byte
void spend_on(size_t bytes) {
  static const auto ns_of = [] {
    std::pair<double, double> ns{20'000, 1};  // 1 GB/s
    const char* const setting = std::getenv("NCCL_DOUBLE_NS");
    if (setting != nullptr && std::sscanf(setting, "%lf,%lf", &ns.first, &ns.second) != 2)
      double_die("NCCL_DOUBLE_NS: two numbers");
    return ns;
  }();
  double_spend(uint64_t(ns_of.first + ns_of.second * double(bytes)));
}

struct Collective {
  Shared comm;
  uint64_t turn;
  std::string what;
  const char* in;
  char* out;
  size_t in_bytes, out_bytes;
  Star::Combine combine;

  static void run(void* argument) {
    const std::unique_ptr<Collective> c(static_cast<Collective*>(argument));
    if (!c->comm->wait_for_turn(c->turn)) return;
    Bytes result;
    if (c->comm->star.exchange(c->what, Bytes(c->in, c->in_bytes), c->combine, &result)) {
      if (result.size() != c->out_bytes) double_die("ranks give different counts");
      std::memcpy(c->out, result.data(), result.size());
      spend_on(c->in_bytes);
      c->comm->end_turn();
      return;
    }
    if (!c->comm->aborted) c->comm->async_error = remote_error;
    c->comm->hang_until_aborted();
  }
};

// As NCCL at the first use of an algorithm: ranks exchange addresses.
void connect_once(ncclComm& comm, const std::string& what, size_t bytes) {
  static const char* const setting = std::getenv("NCCL_DOUBLE_CONNECT");
  if (setting == nullptr || *setting != '1') return;
  const std::lock_guard<std::mutex> lock(comm.connecting);
  const bool nvls = what.find("NVLS") != std::string::npos;
  const std::string kind =
      what.substr(0, 9) + (bytes < 65536 ? " small" : " large") + (nvls ? " NVLS" : "");
  if (!comm.connected.insert(kind).second) return;
  if (!comm.connections)
    comm.connections = std::make_unique<Star>(comm.path + "c", comm.rank, comm.size);
  Bytes unused;
  comm.connections->exchange(kind, "", [](const std::vector<Bytes>& all) { return all; }, &unused);
}

// If NCCL_LAUNCH_ORDER_IMPLICIT says so.
void in_order_of_calls(CUstream_st* stream, const std::function<void()>& queue) {
  static const char* const setting = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (setting == nullptr || *setting != '1') return queue();
  static std::mutex mutex;
  static CUstream_st* const order = double_new_stream();
  const std::lock_guard<std::mutex> lock(mutex);
  double_queue_after(stream, order);
  queue();
  double_queue_after(order, stream);
}

}  // namespace

Shared shared(ncclComm* comm) {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  const auto found = comms().find(comm);
  return found == comms().end() ? nullptr : found->second;
}
ncclComm* keep(Shared comm) {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  return (comms()[comm.get()] = comm).get();
}
void forget(ncclComm* comm) {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  comms().erase(comm);
}
long live_comms() {
  const std::lock_guard<std::mutex> lock(comms_mutex);
  return long(comms().size());
}

int group_depth() { return depth; }
void begin_group() { ++depth; }
int end_group() { return --depth; }
Result carry_out_group() { return carry_out(std::exchange(group, {})); }
void drop_group() { group.clear(); }

Result collective(ncclComm* handle, CUstream_st* stream, const std::string& what, const void* in,
                  size_t in_bytes, void* out, size_t out_bytes, Star::Combine combine) {
  if (double_fails("an NCCL collective")) return internal_error;
  const Shared comm = shared(handle);
  if (!comm) return invalid_argument;
  static const char* const stay = std::getenv("NCCL_DOUBLE_CALL_US");
  ++comm->inside;
  if (stay != nullptr) usleep(unsigned(std::atoi(stay)));
  --comm->inside;
  if (comm->pending > 0) return invalid_usage;
  if (comm->async_error != success) return Result(comm->async_error.load());
  const auto* from = static_cast<char*>(double_host_of(reinterpret_cast<uint64_t>(in), in_bytes));
  auto* to = static_cast<char*>(double_host_of(reinterpret_cast<uint64_t>(out), out_bytes));
  if (from == nullptr || to == nullptr) return invalid_argument;
  Queued call{comm, [=] {
                connect_once(*comm, what, in_bytes);
                uint64_t turn;
                {
                  const std::lock_guard<std::mutex> lock(comm->mutex);
                  turn = comm->calls++;
                }
                double_queue_after(stream, comm->own);
                in_order_of_calls(stream, [&] {
                  double_queue(
                      stream, &Collective::run,
                      new Collective{comm, turn, what, from, to, in_bytes, out_bytes, combine});
                });
                double_queue_after(comm->own, stream);
              }};
  if (depth > 0) {
    group.push_back(std::move(call));
    return success;
  }
  return carry_out({call});
}

}  // namespace doubles
