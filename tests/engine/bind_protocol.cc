// _engine_tests.protocol: the state machines; messages are bytes, tensors are NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "protocol/aggregator.h"
#include "protocol/block_ops.h"
#include "protocol/tensor.h"
#include "protocol/wire.h"
#include "protocol/worker.h"
#include "python/dtypes.h"

namespace py = pybind11;

namespace omnihvd {

void bind_block_ops(py::module_ m);
void bind_number_set(py::module_ m);

namespace {

// An outgoing message that is not sent yet: bytes() reads the memory it refers to anew each time,
// so that a test sees it when that changes too early.
class PyMessage {
 public:
  void add(const Frame& frame, const Layout& layout, uint32_t aggregator) {
    FrameBytes bytes;
    bytes.encode(frame, layout, aggregator);
    message_.add(bytes);
    frames_.emplace_back(frame.slot, frame.round);
  }
  Message& message() { return message_; }
  const std::vector<std::pair<uint32_t, uint32_t>>& frames() const { return frames_; }

  py::bytes bytes(uint64_t number = 0) {
    message_.finish(number);
    std::string bytes;
    for (const Slice& slice : message_.slices())
      bytes.append(static_cast<const char*>(slice.data), slice.size);
    return bytes;
  }

 private:
  Message message_;
  std::vector<std::pair<uint32_t, uint32_t>> frames_;  // slot, round
};

// A received message in memory of exactly its size, so that a sanitizer sees reads beyond it.
class Received {
 public:
  explicit Received(const py::bytes& message) {
    const std::string_view view = message;
    bytes_.reset(new uint8_t[view.size()]);
    std::copy(view.begin(), view.end(), bytes_.get());
    size_ = view.size();
  }
  MessageReader reader() const { return {bytes_.get(), size_}; }
  MessageReader reader(Kind kind) const {
    MessageReader reader(bytes_.get(), size_);
    if (reader.header().kind != kind) throw Error("a message of another kind");
    return reader;
  }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_;
};

// One worker with the tensor that it sums, over the slots of one stream.
class PyWorker {
 public:
  PyWorker(const Shape& shape, uint32_t rank, py::array in, py::array out, uint32_t scan_ahead,
           uint32_t stream, uint32_t streams)
      : in_(in),
        out_(out),
        rank_(rank),
        layout_(shape),
        tensor_(layout_, in_.data(), out_.mutable_data(), rank),
        worker_(layout_, tensor_, scan_ahead, stream, streams) {
    const py::ssize_t bytes = py::ssize_t(shape.count * size_of(shape.dtype));
    if (in.nbytes() != bytes || out.nbytes() != bytes || !(in.flags() & py::array::c_style) ||
        !(out.flags() & py::array::c_style))
      throw py::value_error("the arrays do not have the tensor's shape");
  }

  // The first contributions of the next `slots` slots, fused as far as they go to one aggregator.
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
  uint64_t nonzero_blocks() const { return worker_.nonzero_blocks(); }
  uint64_t result_blocks() const { return worker_.result_blocks(); }

 private:
  Header header() const {
    Header header;
    header.kind = Kind::contribution;
    header.from = rank_;
    return header;
  }

  py::array in_, out_;
  uint32_t rank_;
  Layout layout_;
  HostTensor tensor_;
  Worker worker_;
  Frame frame_;
};

class PyAggregator : Aggregator::Sink {
 public:
  PyAggregator(const Shape& shape, uint32_t index, uint32_t workers, bool ordered, uint32_t stream,
               uint32_t streams)
      : index_(index),
        layout_(shape),
        aggregator_(layout_, index, workers, stream, streams, ordered) {}

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

  std::optional<PyMessage> released(uint32_t slot, uint32_t round) {
    aggregator_.released(slot, round, *this);
    return results();
  }

  bool done() const { return aggregator_.done(); }
  std::vector<uint32_t> awaited() const { return aggregator_.awaited(); }
  size_t accumulator_bytes() const { return aggregator_.accumulator_bytes(); }

 private:
  void result(const Frame& frame) override {
    if (results_.message().empty()) {
      Header header;
      header.kind = Kind::result;
      header.from = index_;
      results_.message().begin(header, nullptr);
    }
    results_.add(frame, layout_, index_);
  }

  std::optional<PyMessage> results() {
    if (results_.message().empty()) return std::nullopt;
    return std::exchange(results_, PyMessage());
  }

  uint32_t index_;
  Layout layout_;
  Aggregator aggregator_;
  PyMessage results_;
};

// A frame that owns its blocks: (position, bytes, packed). Those listed on the wire are packed
// here.
struct PyFrame {
  uint32_t slot, round;
  uint64_t bound;
  bool as_named;
  std::vector<std::tuple<uint64_t, py::bytes, bool>> blocks;
  std::vector<uint64_t> ahead;
};

py::bytes encode(const std::vector<PyFrame>& frames, const Shape& of,
                 const std::optional<Shape>& shape, int kind, uint16_t stream, uint32_t from,
                 uint64_t group, uint64_t number, uint64_t sequence, const std::string& text,
                 uint32_t aggregator) {
  Header header;
  header.kind = Kind(kind);
  header.stream = stream;
  header.from = from;
  header.group = group;
  header.sequence = sequence;
  const Layout layout(of);
  PyMessage message;
  message.message().begin(header, shape ? &*shape : nullptr);
  for (const PyFrame& from_python : frames) {
    Frame frame;
    frame.clear(from_python.slot, from_python.round);
    frame.bound = from_python.bound;
    frame.as_named = from_python.as_named;
    for (const auto& [position, bytes, packed] : from_python.blocks) {
      const std::string_view data = bytes;
      frame.blocks.push_back(
          {position, reinterpret_cast<const uint8_t*>(data.data()), uint32_t(data.size()), packed});
      // A coded block is smaller than a plain one.
      const uint32_t n = layout.elements_of(layout.block_at(aggregator, frame.slot, position));
      frame.blocks.back().coded =
          layout.shape().codec && !packed && data.size() < n * size_of(layout.shape().dtype);
    }
    frame.ahead = from_python.ahead;
    message.add(frame, layout, aggregator);
  }
  if (!text.empty()) message.message().add_text(text);
  return message.bytes(number);
}

py::bytes packed_bytes(const BlockRef& block, const Layout& layout, uint32_t n) {
  if (!block.offsets) return {reinterpret_cast<const char*>(block.data), block.bytes};
  const size_t element = size_of(layout.shape().dtype);
  std::vector<uint8_t> packed(bitmap_bytes(n) + block.bytes);
  pack_listed(block.offsets, block.data, block.bytes / element, element, n, packed.data());
  return {reinterpret_cast<const char*>(packed.data()), packed.size()};
}

// The header as a dict, with the frames of a contribution or result, or the text of an abort.
// named: the positions that the sender has named in any slot's window.
py::dict decode(const py::bytes& bytes, const Shape& shape, uint32_t aggregator,
                const std::optional<std::vector<uint64_t>>& named) {
  const Received received(bytes);
  MessageReader reader = received.reader();
  const Header& header = reader.header();
  py::dict fields;
  fields["kind"] = int(header.kind);
  fields["stream"] = header.stream;
  fields["from"] = header.from;
  fields["group"] = header.group;
  fields["number"] = header.number;
  fields["sequence"] = header.sequence;
  if (reader.has_shape()) fields["shape"] = reader.shape();
  if (header.kind == Kind::abort) {
    fields["text"] = py::bytes(reader.text());
    return fields;
  }
  const Layout layout(shape);
  MessageReader::Named positions;
  if (named)
    positions = [&](uint32_t, uint32_t) { return Positions{named->data(), named->size()}; };
  std::vector<PyFrame> frames;
  py::list listed;  // how many blocks of each frame are
  Frame frame;
  while (reader.next(layout, aggregator, positions, &frame)) {
    PyFrame& copy = frames.emplace_back(
        PyFrame{frame.slot, frame.round, frame.bound, frame.as_named, {}, frame.ahead});
    size_t count = 0;
    BlockCursor cursor(layout, aggregator, frame.slot);
    for (const BlockRef& block : frame.blocks) {
      const uint32_t n = cursor.elements_at(block.position);
      copy.blocks.emplace_back(block.position, packed_bytes(block, layout, n),
                               block.packed || block.offsets);
      count += block.offsets != nullptr;
    }
    listed.append(count);
  }
  fields["frames"] = frames;
  fields["listed"] = listed;
  return fields;
}

void bind_shape(py::module_& m) {
  py::class_<Shape>(m, "Shape")
      .def(py::init([](uint64_t count, const std::string& dtype, uint32_t block_size,
                       uint32_t aggregators, uint32_t slots, uint32_t window, uint32_t stripe,
                       const Codec& codec) {
             Shape shape;
             shape.count = count;
             shape.dtype = dtype_named(dtype);
             shape.block_size = block_size;
             shape.aggregators = aggregators;
             shape.slots = slots;
             shape.window = window;
             shape.stripe = stripe;
             shape.codec = codec;
             return shape;
           }),
           py::kw_only(), py::arg("count"), py::arg("dtype"), py::arg("block_size") = 256,
           py::arg("aggregators") = 1, py::arg("slots") = 1, py::arg("window") = 1,
           py::arg("stripe") = 1, py::arg("codec") = Codec())
      .def_static(
          "fit",
          [](uint64_t count, const std::string& dtype, uint32_t block_size, uint32_t aggregators,
             uint32_t max_slots, uint32_t message_bytes, const Codec& codec) {
            return Shape::fit(count, dtype_named(dtype), block_size, aggregators, max_slots,
                              message_bytes, codec);
          },
          py::kw_only(), py::arg("count"), py::arg("dtype"), py::arg("block_size"),
          py::arg("aggregators"), py::arg("max_slots"), py::arg("message_bytes"),
          py::arg("codec") = Codec())
      .def("__eq__", [](const Shape& a, const Shape& b) { return a == b; })
      .def_readonly("count", &Shape::count)
      .def_property_readonly("dtype", [](const Shape& s) { return name_of(s.dtype); })
      .def_readonly("block_size", &Shape::block_size)
      .def_readonly("aggregators", &Shape::aggregators)
      .def_readonly("slots", &Shape::slots)
      .def_readonly("window", &Shape::window)
      .def_readonly("stripe", &Shape::stripe)
      .def_property_readonly("blocks", &Shape::blocks)
      .def_property_readonly("block_bytes", &Shape::block_bytes)
      .def("positions", [](const Shape& s, uint32_t slot) { return Layout(s).positions(slot); })
      .def("block_at",
           [](const Shape& s, uint32_t aggregator, uint32_t slot, uint64_t position) {
             return Layout(s).block_at(aggregator, slot, position);
           })
      .def("elements_of", [](const Shape& s, uint64_t b) { return Layout(s).elements_of(b); })
      .def("place_of", [](const Shape& s, uint64_t block) {
        const Layout::Place place = Layout(s).place_of(block);
        return std::make_tuple(place.aggregator, place.slot, place.position);
      });
}

void bind_wire(py::module_& m) {
  m.attr("END") = kEnd;
  m.attr("FULL") = Message::kFull;
  py::class_<PyFrame>(m, "Frame")
      .def(py::init(
               [](uint32_t slot, uint32_t round, uint64_t bound,
                  const decltype(PyFrame::blocks)& blocks, const decltype(PyFrame::ahead)& ahead,
                  bool as_named) { return PyFrame{slot, round, bound, as_named, blocks, ahead}; }),
           py::arg("slot") = 0, py::arg("round") = 0, py::arg("bound") = kEnd,
           py::arg("blocks") = decltype(PyFrame::blocks){},
           py::arg("ahead") = decltype(PyFrame::ahead){}, py::arg("as_named") = false)
      .def_readwrite("slot", &PyFrame::slot)
      .def_readwrite("round", &PyFrame::round)
      .def_readwrite("bound", &PyFrame::bound)
      .def_readwrite("blocks", &PyFrame::blocks)
      .def_readwrite("ahead", &PyFrame::ahead)
      .def_readwrite("as_named", &PyFrame::as_named);
  m.def("encode", &encode, py::arg("frames"), py::arg("of"), py::kw_only(),
        py::arg("shape") = py::none(), py::arg("kind") = int(Kind::contribution),
        py::arg("stream") = 0, py::arg("sender") = 0, py::arg("group") = 0, py::arg("number") = 0,
        py::arg("sequence") = 0, py::arg("text") = "", py::arg("aggregator") = 0);
  m.def("decode", &decode, py::arg("message"), py::arg("shape"), py::arg("aggregator") = 0,
        py::arg("named") = py::none());
}

}  // namespace

void bind_protocol(py::module_ m) {
  bind_block_ops(m);
  bind_number_set(m);
  bind_shape(m);
  bind_wire(m);
  py::class_<PyMessage>(m, "Message")
      .def("bytes", [](PyMessage& message) { return message.bytes(); })
      .def_property_readonly("frames", &PyMessage::frames);
  py::class_<PyWorker>(m, "Worker")
      .def(py::init<const Shape&, uint32_t, py::array, py::array, uint32_t, uint32_t, uint32_t>(),
           py::arg("shape"), py::arg("rank"), py::arg("input"), py::arg("output"),
           py::arg("scan_ahead") = 2048, py::arg("stream") = 0, py::arg("streams") = 1)
      .def("start", &PyWorker::start, py::arg("slots") = SIZE_MAX)
      .def("on_message", &PyWorker::on_message)
      .def_property_readonly("done", &PyWorker::done)
      .def_property_readonly("nonzero_blocks", &PyWorker::nonzero_blocks)
      .def_property_readonly("result_blocks", &PyWorker::result_blocks);
  py::class_<PyAggregator>(m, "Aggregator")
      .def(py::init<const Shape&, uint32_t, uint32_t, bool, uint32_t, uint32_t>(), py::arg("shape"),
           py::arg("index"), py::arg("workers"), py::arg("ordered") = false, py::arg("stream") = 0,
           py::arg("streams") = 1)
      .def("on_message", &PyAggregator::on_message)
      .def("released", &PyAggregator::released)
      .def_property_readonly("done", &PyAggregator::done)
      .def_property_readonly("awaited", &PyAggregator::awaited)
      .def_property_readonly("accumulator_bytes", &PyAggregator::accumulator_bytes);
}

}  // namespace omnihvd
