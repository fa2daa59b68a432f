// _engine_tests.datagrams: loss recovery, driven by a clock that is a number.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/awake_clock.h"
#include "innetwork/udp/datagram_peer.h"
#include "innetwork/udp/datagram_receiver.h"
#include "innetwork/udp/datagram_sender.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

using Fields = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;
using Told = std::tuple<uint32_t, uint32_t, std::vector<uint8_t>>;

std::optional<std::tuple<Fields, uint64_t, uint32_t>> next(DatagramSender& sender, uint64_t now) {
  DatagramSender::Piece piece;
  if (!sender.next(now, &piece)) return std::nullopt;
  const Datagram& h = piece.header;
  return std::make_tuple(Fields{h.sequence, h.stamp, h.size, h.offset}, piece.message, piece.bytes);
}

std::optional<std::vector<uint64_t>> told(DatagramSender& sender, uint64_t now, const Told& what) {
  std::vector<uint64_t> done;
  const auto& [floor, stamp, bits] = what;
  if (!sender.on_acknowledgement(now, {floor, stamp, bits}, &done)) return std::nullopt;
  return done;
}

std::string take(DatagramReceiver& receiver, const Fields& fields, const std::string& bytes) {
  const auto& [sequence, stamp, size, offset] = fields;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  switch (receiver.on_datagram({sequence, stamp, size, offset}, data, bytes.size())) {
    case DatagramReceiver::Taken::fresh: return "fresh";
    case DatagramReceiver::Taken::duplicate: return "duplicate";
    default: return "refused";
  }
}

std::optional<py::bytes> message(DatagramReceiver& receiver) {
  std::vector<uint8_t> bytes;
  if (!receiver.next_message(&bytes)) return std::nullopt;
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// A process that waits for another one, by its own clock.
struct TestPeer {
  AwakeClock clock;
  DatagramPeer peer;
  uint64_t stops;

  explicit TestPeer(uint64_t steady) : peer(clock.at(steady)), stops(clock.stops()) {}
  // Acts as the transport does. Returns what it sends, or that it gives the peer up.
  std::string look(uint64_t steady, bool lives) {
    const uint64_t now = clock.at(steady);
    if (std::exchange(stops, clock.stops()) != clock.stops()) peer.stopped(now);
    constexpr const char* kEnds[] = {"", "refused", "never answered", "silent"};
    constexpr const char* kSays[] = {"", "open", "probe", "both"};
    const DatagramPeer::End end = peer.end(now, lives);
    return end != DatagramPeer::End::none ? kEnds[int(end)] : kSays[int(peer.say(now))];
  }
};

}  // namespace

void bind_datagrams(py::module_ m) {
  py::class_<TestPeer>(m, "Peer")
      .def(py::init<uint64_t>(), py::arg("steady"))
      .def("look", &TestPeer::look, py::arg("steady"), py::arg("lives"))
      .def("opened", [](TestPeer& p, uint64_t steady) { p.peer.opened(p.clock.at(steady)); })
      .def("heard", [](TestPeer& p, uint64_t steady) { p.peer.heard(p.clock.at(steady)); })
      .def("refused", [](TestPeer& p, uint64_t steady) { p.peer.refused(p.clock.at(steady)); });
  py::class_<DatagramSender>(m, "Sender")
      .def(py::init<uint32_t, uint32_t, uint32_t>(), py::arg("first"), py::arg("payload"),
           py::arg("window"))
      .def("send", &DatagramSender::send, py::arg("message"), py::arg("size"))
      .def("set_limit", &DatagramSender::set_limit, py::arg("datagrams"))
      .def(
          "pace", [](DatagramSender& sender, uint32_t overhead) { sender.pace(overhead); },
          py::arg("overhead"))
      .def_property_readonly("bandwidth",
                             [](const DatagramSender& sender) {
                               return sender.pace() ? sender.pace()->bandwidth() : 0;
                             })
      .def("next", &next, py::arg("now"), "((sequence, stamp, size, offset), message, bytes)")
      .def("wake_at", &DatagramSender::wake_at)
      .def("on_acknowledgement", &told, py::arg("now"), py::arg("what"),
           "(floor, stamp, bits) in; the messages that are done, or None: refused.")
      .def_property_readonly("idle", &DatagramSender::idle)
      .def_property_readonly("under_way", &DatagramSender::under_way)
      .def_property_readonly("sent", &DatagramSender::sent)
      .def_property_readonly("again", &DatagramSender::again)
      .def_property_readonly("round_trip", &DatagramSender::round_trip)
      .def_property_readonly("kept", &DatagramSender::kept);
  py::class_<DatagramReceiver>(m, "Receiver")
      .def(py::init<uint32_t, uint32_t, uint32_t, uint32_t, bool>(), py::arg("first"),
           py::arg("payload"), py::arg("window"), py::arg("largest"), py::arg("ordered"))
      .def("on_datagram", &take, py::arg("header"), py::arg("data"))
      .def("next_message", &message)
      .def_property_readonly("owes", &DatagramReceiver::owes)
      .def("acknowledgement",
           [](DatagramReceiver& receiver) {
             const Acknowledgement made = receiver.acknowledgement();
             return Told{made.floor, made.stamp, made.bits};
           })
      .def_property_readonly("held_bytes", &DatagramReceiver::held_bytes);
}

}  // namespace omnihvd
