// omnihvd._engine.transport: one end of a link, with which `omnihvd check` measures it.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "engine/settings.h"
#include "transport/registry.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// Sends messages of one size, and counts messages sent and received.
class LinkEnd final : Transport::Handler {
 public:
  explicit LinkEnd(size_t message_bytes, const Settings& s = settings_from_environment())
      : content_(message_bytes, '\0'),
        transport_(make_transport(s.transport, transport_options(s))) {
    transport_->set_handler(this);
  }

  py::bytes address() const { return transport_->address(); }
  PeerId connect(const std::string& address) { return transport_->connect(address); }
  void send(PeerId peer) {
    const Slice content{content_.data(), content_.size()};
    transport_->send(peer, &content, 1, 0);
  }
  void step(int timeout_ms) {
    const py::gil_scoped_release release;
    if (!transport_->progress()) transport_->wait(timeout_ms);
    if (!failure_.empty()) throw Error(failure_);
  }
  uint64_t sent() const { return sent_; }
  uint64_t received() const { return received_; }
  std::string describe() const { return transport_->describe(); }

 private:
  void on_message(const uint8_t*, size_t) override { ++received_; }
  void on_sent(uint64_t) override { ++sent_; }
  void on_peer_failed(PeerId, const std::string& reason) override { failure_ = reason; }

  const std::string content_;
  uint64_t sent_ = 0, received_ = 0;
  std::string failure_;
  const std::unique_ptr<Transport> transport_;  // destroyed first: it uses the other members
};

}  // namespace

void bind_transport(py::module_ m) {
  py::class_<LinkEnd>(m, "LinkEnd", "One end of a link: sends messages of one size, and counts.")
      .def(py::init<size_t>(), py::arg("message_bytes"))
      .def("address", &LinkEnd::address)
      .def("connect", &LinkEnd::connect, py::arg("address"), "The peer, for send().")
      .def("send", &LinkEnd::send, py::arg("peer"))
      .def("step", &LinkEnd::step, py::arg("timeout_ms"),
           "Moves what can be moved, or waits until something can, at most so long. EngineError: a "
           "peer failed.")
      .def_property_readonly("sent", &LinkEnd::sent)
      .def_property_readonly("received", &LinkEnd::received)
      .def("describe", &LinkEnd::describe);
}

}  // namespace omnihvd
