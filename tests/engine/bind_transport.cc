// _engine_tests.transport: drives a Transport from Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "innetwork/udp/transport.h"
#include "memory.h"
#include "transport/process_watch.h"
#include "transport/registry.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// Keeps the transport's reports until Python asks.
struct Collector final : Transport::Handler {
  std::vector<std::string> messages;
  std::vector<uint64_t> sent;
  std::vector<std::pair<PeerId, std::string>> failures;
  uint64_t received = 0;  // messages
  uint64_t sent_count = 0;
  bool keep_messages = true;
  bool keep_sent = true;
  bool in_progress = false;
  std::string fault;  // how the transport broke its interface

  void on_message(const uint8_t* data, size_t size) override {
    check_called_from_progress();
    if (reinterpret_cast<uintptr_t>(data) % 8 != 0) fault = "a message is not aligned";
    ++received;
    if (keep_messages) messages.emplace_back(reinterpret_cast<const char*>(data), size);
  }
  void on_sent(uint64_t cookie) override {
    check_called_from_progress();
    ++sent_count;
    if (keep_sent) sent.push_back(cookie);
  }
  void on_peer_failed(PeerId peer, const std::string& reason) override {
    check_called_from_progress();
    failures.emplace_back(peer, reason);
  }
  void check_called_from_progress() {
    if (!in_progress) fault = "the handler was called outside of progress()";
  }
};

// A clock in microseconds: set by a test, or the steady clock times a factor.
class TestClock {
 public:
  explicit TestClock(uint64_t speed) : speed_(speed) {}
  void advance(uint64_t us) { us_ += us; }
  uint64_t now() const { return us_ + speed_ * steady_us(); }

 private:
  const uint64_t speed_;
  std::atomic<uint64_t> us_{0};
};

class Driver {
 public:
  explicit Driver(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
    transport_->set_handler(&collector_);
  }
  void close() { transport_.reset(); }

  py::bytes address() const { return transport_->address(); }
  PeerId connect(const std::string& address) { return transport_->connect(address); }
  std::string describe() const { return transport_->describe(); }
  void wake() { transport_->wake(); }
  void kill() { kill_memory_transport(*transport_); }

  void disconnect(PeerId peer) { transport_->disconnect(peer); }

  // The buffers are kept until the transport gives them back.
  void send(PeerId peer, const std::vector<py::buffer>& buffers, uint64_t cookie) {
    std::vector<py::buffer_info> held;
    std::vector<Slice> slices;
    for (const py::buffer& buffer : buffers) {
      held.push_back(buffer.request());
      slices.push_back({held.back().ptr, static_cast<size_t>(held.back().size) *
                                             static_cast<size_t>(held.back().itemsize)});
    }
    transport_->send(peer, slices.data(), slices.size(), cookie);
    held_.emplace(cookie, std::move(held));
  }

  void detach(uint64_t cookie) {
    transport_->detach(cookie);
    held_.erase(cookie);
  }

  bool progress() {
    const size_t before = collector_.sent.size();
    bool any;
    {
      const py::gil_scoped_release release;
      any = step();
    }
    for (size_t i = before; i < collector_.sent.size(); ++i) held_.erase(collector_.sent[i]);
    if (!collector_.fault.empty()) throw Broken(collector_.fault);
    return any;
  }

  void wait(int timeout_ms) {
    const py::gil_scoped_release release;
    transport_->wait(timeout_ms);
  }

  std::vector<py::bytes> take_messages() {
    std::vector<py::bytes> taken(collector_.messages.begin(), collector_.messages.end());
    collector_.messages.clear();
    return taken;
  }
  std::vector<uint64_t> take_sent() { return std::exchange(collector_.sent, {}); }
  std::vector<std::pair<PeerId, std::string>> take_failures() {
    return std::exchange(collector_.failures, {});
  }

  // Sends `count` messages of `size` bytes in so many slices, `window` messages at a time. If there
  // is nothing to do, it sleeps if `sleep` is set, else polls. Returns when all are sent, or on a
  // failure.
  void stream(PeerId peer, size_t size, size_t slices, uint64_t count, uint64_t window,
              bool sleep) {
    const py::gil_scoped_release release;
    const std::vector<char> buffer(size, 1);
    std::vector<Slice> parts;
    for (size_t i = 0; i < slices; ++i) {
      const size_t begin = size * i / slices, end = size * (i + 1) / slices;
      parts.push_back({buffer.data() + begin, end - begin});
    }
    const uint64_t start = collector_.sent_count;
    collector_.keep_sent = false;
    for (uint64_t begun = 0;;) {
      const uint64_t done = collector_.sent_count - start;
      if (done == count || !collector_.failures.empty()) break;
      for (; begun < count && begun < done + window; ++begun) {
        transport_->send(peer, parts.data(), parts.size(), begun);
      }
      if (!step() && sleep) transport_->wait(1000);
    }
    collector_.keep_sent = true;
  }

  // Receives `count` messages and drops them.
  void absorb(uint64_t count, bool sleep) {
    const py::gil_scoped_release release;
    const uint64_t start = collector_.received;
    collector_.keep_messages = false;
    while (collector_.received - start < count && collector_.failures.empty()) {
      if (!step() && sleep) transport_->wait(1000);
    }
    collector_.keep_messages = true;
  }

 private:
  bool step() {
    collector_.in_progress = true;
    const bool any = transport_->progress();
    collector_.in_progress = false;
    return any;
  }

  Collector collector_;
  std::unordered_map<uint64_t, std::vector<py::buffer_info>> held_;
  std::unique_ptr<Transport> transport_;  // goes first: it uses the others
};

}  // namespace

void bind_transport(py::module_ m) {
  m.def(
      "is_alive",
      [](uint32_t pid, uint64_t start) {
        ProcessId process = this_process();
        process.pid = pid;
        process.start = start;
        return ProcessWatch().add(0, process);
      },
      py::arg("pid"), py::arg("start"),
      "Whether a process of this host is not known to have ended.");
  py::class_<TestClock, std::shared_ptr<TestClock>>(m, "Clock", "Time as a UDP transport takes it.")
      .def(py::init<uint64_t>(), py::arg("speed") = 0,
           "speed: of the steady clock's; 0: it stands still.")
      .def("advance", &TestClock::advance, py::arg("us"));
  py::class_<Driver>(m, "Transport", "A transport with a handler that collects what comes.")
      .def_static("ucx", [] { return std::make_unique<Driver>(make_transport("ucx")); })
      .def_static(
          "udp",
          [](const std::string& secret, uint32_t mtu, const std::shared_ptr<TestClock>& clock,
             bool watches) {
            UdpOptions options(TransportOptions{secret, "", mtu});
            options.watches = watches;
            if (clock) options.clock = [clock] { return clock->now(); };
            return std::make_unique<Driver>(make_udp_transport(options));
          },
          py::arg("secret") = "", py::arg("mtu") = 0, py::arg("clock") = nullptr,
          py::arg("watches") = true)
      .def_static("memory", [] { return std::make_unique<Driver>(make_memory_transport()); })
      .def("address", &Driver::address)
      .def("connect", &Driver::connect, py::arg("address"))
      .def("disconnect", &Driver::disconnect, py::arg("peer"))
      .def("send", &Driver::send, py::arg("peer"), py::arg("buffers"), py::arg("cookie"))
      .def("detach", &Driver::detach, py::arg("cookie"))
      .def("progress", &Driver::progress)
      .def("wait", &Driver::wait, py::arg("timeout_ms"))
      .def("wake", &Driver::wake)
      .def("close", &Driver::close, py::call_guard<py::gil_scoped_release>(),
           "Destroys the transport; it must not be used any more.")
      .def("kill", &Driver::kill, "Memory only: as if the process of this transport were killed.")
      .def("describe", &Driver::describe)
      .def("take_messages", &Driver::take_messages)
      .def("take_sent", &Driver::take_sent, "Cookies, in the order of on_sent.")
      .def("take_failures", &Driver::take_failures, "(peer, reason) of each failed peer.")
      .def("stream", &Driver::stream, py::arg("peer"), py::arg("size"), py::arg("slices"),
           py::arg("count"), py::arg("window"), py::arg("sleep"))
      .def("absorb", &Driver::absorb, py::arg("count"), py::arg("sleep"));
}

}  // namespace omnihvd
