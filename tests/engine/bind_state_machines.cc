// _engine_tests.protocol: the state machines; messages are bytes, tensors are NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "messages.h"
#include "protocol/aggregator.h"
#include "protocol/seats.h"
#include "protocol/tensor.h"
#include "protocol/worker.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// A worker with the tensor that it sums, over the slots of one progress thread.
class PyWorker {
 public:
  PyWorker(const Shape& shape, uint32_t rank, py::array in, std::optional<py::array> out,
           uint32_t scan_ahead, uint32_t stream, uint32_t streams)
      : in_(in),
        out_(out),
        rank_(rank),
        layout_(shape),
        tensor_(layout_, in_.data(), out_ ? out_->mutable_data() : nullptr, rank),
        worker_(layout_, tensor_, scan_ahead, stream, streams) {
    const py::ssize_t bytes = py::ssize_t(shape.count * size_of(shape.dtype));
    if (in.nbytes() != bytes || !(in.flags() & py::array::c_style) ||
        (out && (out->nbytes() != bytes || !(out->flags() & py::array::c_style))))
      throw py::value_error("the arrays do not have the tensor's shape");
  }

  // The first contributions of the next `slots` slots, fused if they go to the same aggregator.
  std::vector<std::pair<uint32_t, PyMessage>> start(size_t slots) {
    std::vector<std::pair<uint32_t, PyMessage>> messages;
    uint32_t aggregator;
    while (slots-- > 0 && worker_.start(&aggregator, &frame_)) {
      size_t i = 0;
      while (i < messages.size() && (messages[i].first != aggregator ||
                                     messages[i].second.message().size() >= Message::kFull))
        ++i;
      if (i == messages.size()) {
        messages.emplace_back(aggregator, PyMessage());
        messages[i].second.message().begin(header(), &layout_.shape());
      }
      messages[i].second.add(frame_, layout_, aggregator);
    }
    return messages;
  }

  std::optional<PyMessage> on_message(const py::bytes& bytes) {
    const Received received(bytes);
    MessageReader reader = received.reader(Kind::result);
    PyMessage replies;
    Frame result;
    const uint32_t aggregator = reader.header().from;
    while (reader.next(layout_, aggregator, nullptr, &result))
      if (worker_.on_result(aggregator, result, &frame_)) {
        if (replies.message().empty()) replies.message().begin(header(), nullptr);
        replies.add(frame_, layout_, aggregator);
      }
    if (replies.message().empty()) return std::nullopt;
    return replies;
  }

  bool done() const { return worker_.done(); }
  std::vector<uint32_t> awaited() const { return worker_.awaited(); }
  uint64_t nonzero_blocks() const { return worker_.nonzero_blocks(); }
  uint64_t result_blocks() const { return worker_.result_blocks(); }

 private:
  Header header() const {
    Header header;
    header.kind = Kind::contribution;
    header.from = rank_;
    return header;
  }

  py::array in_;
  std::optional<py::array> out_;
  uint32_t rank_;
  Layout layout_;
  HostTensor tensor_;
  Worker worker_;
  Frame frame_;
};

class PyAggregator : Aggregator::Sink {
 public:
  PyAggregator(const Shape& shape, uint32_t index, uint32_t workers, bool ordered, uint32_t stream,
               uint32_t streams, std::optional<uint32_t> member)
      : index_(index),
        member_(member),
        layout_(shape),
        aggregator_(layout_, index, workers, stream, streams, ordered,
                    member ? std::optional(kSums - 1) : std::nullopt) {}

  std::optional<PyMessage> on_message(const py::bytes& bytes) {
    const Received received(bytes);
    MessageReader reader = received.reader(Kind::contribution);
    if (reader.has_shape() && reader.shape() != layout_.shape()) throw Error("shapes differ");
    Frame frame;
    const auto named = [&](uint32_t slot, uint32_t round) {
      return aggregator_.named(reader.header().from, slot, round);
    };
    while (reader.next(layout_, index_, named, &frame))
      aggregator_.on_contribution(reader.header().from, frame, *this);
    return results();
  }

  // For an aggregator with a parent: handles the parent's result, which is for all members.
  void on_result(const py::bytes& bytes) {
    const Received received(bytes);
    MessageReader reader = received.reader(Kind::result);
    Frame frame;
    while (reader.next(layout_, index_, nullptr, &frame)) aggregator_.on_result(frame);
  }

  std::optional<PyMessage> released(uint32_t slot, uint32_t round) {
    aggregator_.released(slot, round, *this);
    return results();
  }

  // For a reduce: the message to members that do not get the last results.
  std::optional<PyMessage> without_sums() {
    if (told_.message().empty()) return std::nullopt;
    return std::exchange(told_, PyMessage());
  }

  bool done() const { return aggregator_.done(); }
  std::vector<uint32_t> awaited() const { return aggregator_.awaited(); }
  size_t accumulator_bytes() const { return aggregator_.accumulator_bytes(); }

 private:
  void result(const Frame& frame) override {
    say(Kind::result, index_, frame, &results_);
    if (layout_.shape().for_one()) say(Kind::result, index_, frame.without_sums(), &told_);
  }
  void contribution(const Frame& frame) override {
    say(Kind::contribution, *member_, frame, &results_);
  }

  void say(Kind kind, uint32_t from, const Frame& frame, PyMessage* into) {
    if (into->message().empty()) {
      Header header;
      header.kind = kind;
      header.from = from;
      into->message().begin(header, member_ ? &layout_.shape() : nullptr);
    }
    into->add(frame, layout_, index_);
  }

  std::optional<PyMessage> results() {
    if (results_.message().empty()) return std::nullopt;
    return std::exchange(results_, PyMessage());
  }

  uint32_t index_;
  std::optional<uint32_t> member_;  // number in the parent's group, if it has a parent
  Layout layout_;
  Aggregator aggregator_;
  PyMessage results_, told_;
};

void bind_tree(py::module_& m) {
  py::class_<Tree>(m, "Tree")
      .def(py::init<uint32_t, const std::vector<uint32_t>&>(), py::arg("ranks"), py::arg("fans"))
      .def_static("fans_for", &Tree::fans_for, py::arg("ranks"), py::arg("peers"))
      .def_property_readonly("levels", &Tree::levels)
      .def("group_of", &Tree::group_of, py::arg("level"), py::arg("rank"))
      .def("members", &Tree::members, py::arg("level"), py::arg("group"))
      .def("member_of", &Tree::member_of, py::arg("level"), py::arg("rank"))
      .def("host", &Tree::host, py::arg("level"), py::arg("group"), py::arg("share"))
      .def("host_of_member", &Tree::host_of_member, py::arg("level"), py::arg("group"),
           py::arg("m"), py::arg("share"));
  m.def("fans_of", &fans_of, py::arg("levels"), py::arg("ranks"), py::arg("dedicated"));
  py::class_<Seats>(m, "Seats")
      .def(py::init<uint32_t, uint32_t, const std::vector<uint32_t>&>(), py::arg("ranks"),
           py::arg("dedicated"), py::arg("fans"))
      .def_property_readonly("levels", &Seats::levels)
      .def_property_readonly("most_shares", &Seats::most_shares)
      .def("shares", &Seats::shares, py::arg("windows"))
      .def("peers", &Seats::peers, py::arg("node"))
      .def("chance_of", &Seats::chance_of, py::arg("level"), py::arg("node"))
      .def("number", [](const Seats& seats, uint32_t level,
                        uint32_t share) { return seats.number({level, share}); })
      .def("at", [](const Seats& seats, uint64_t number) {
        const Seat seat = seats.at(number);
        return std::make_pair(seat.level, seat.share);
      });
}

}  // namespace

void bind_state_machines(py::module_& m) {
  bind_tree(m);
  py::class_<PyMessage>(m, "Message")
      .def("bytes", [](PyMessage& message) { return message.bytes(); })
      .def_property_readonly("refers", &PyMessage::refers)
      .def_property_readonly("frames", &PyMessage::frames);
  py::class_<PyWorker>(m, "Worker")
      .def(py::init<const Shape&, uint32_t, py::array, std::optional<py::array>, uint32_t, uint32_t,
                    uint32_t>(),
           py::arg("shape"), py::arg("rank"), py::arg("input"), py::arg("output"),
           py::arg("scan_ahead") = 2048, py::arg("stream") = 0, py::arg("streams") = 1,
           "output: None where another rank gets the sums.")
      .def("start", &PyWorker::start, py::arg("slots") = SIZE_MAX)
      .def("on_message", &PyWorker::on_message)
      .def_property_readonly("done", &PyWorker::done)
      .def_property_readonly("awaited", &PyWorker::awaited)
      .def_property_readonly("nonzero_blocks", &PyWorker::nonzero_blocks)
      .def_property_readonly("result_blocks", &PyWorker::result_blocks);
  py::class_<PyAggregator>(m, "Aggregator")
      .def(py::init<const Shape&, uint32_t, uint32_t, bool, uint32_t, uint32_t,
                    std::optional<uint32_t>>(),
           py::arg("shape"), py::arg("index"), py::arg("workers"), py::arg("ordered") = false,
           py::arg("stream") = 0, py::arg("streams") = 1, py::arg("member") = py::none())
      .def("on_result", &PyAggregator::on_result)
      .def("on_message", &PyAggregator::on_message)
      .def("released", &PyAggregator::released)
      .def("without_sums", &PyAggregator::without_sums)
      .def_property_readonly("done", &PyAggregator::done)
      .def_property_readonly("awaited", &PyAggregator::awaited)
      .def_property_readonly("accumulator_bytes", &PyAggregator::accumulator_bytes);
}

}  // namespace omnihvd
