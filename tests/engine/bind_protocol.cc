// _engine_tests.protocol: layouts and the wire format.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "messages.h"
#include "numeric/block_ops.h"
#include "protocol/wire.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {

void bind_block_ops(py::module_ m);
void bind_number_set(py::module_ m);
void bind_router(py::module_ m);
void bind_state_machines(py::module_& m);

namespace {

// A frame that owns its blocks: (position, bytes, packed). This class packs the blocks that are
// listed on the wire.
struct PyFrame {
  uint32_t slot, round;
  uint64_t bound;
  bool as_named;
  std::vector<std::tuple<uint64_t, py::bytes, bool>> blocks;
  std::vector<uint64_t> ahead;
  std::vector<uint8_t> exponents;
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
          !packed && ((layout.shape().arithmetic.integers() && data.size() > n * sizeof(int32_t)) ||
                      (layout.shape().codec && data.size() < n * size_of(layout.shape().dtype)));
    }
    frame.ahead = from_python.ahead;
    frame.exponents = from_python.exponents;
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
    PyFrame& copy = frames.emplace_back(PyFrame{
        frame.slot, frame.round, frame.bound, frame.as_named, {}, frame.ahead, frame.exponents});
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

ArithmeticKind arithmetic_named(const std::string& name) {
  const auto* const found =
      std::find(std::begin(kArithmeticNames), std::end(kArithmeticNames), name);
  if (found == std::end(kArithmeticNames)) throw py::value_error("no arithmetic: " + name);
  return ArithmeticKind(found - std::begin(kArithmeticNames));
}

void bind_shape(py::module_& m) {
  py::class_<Shape>(m, "Shape")
      .def(py::init([](uint64_t count, const std::string& dtype, uint32_t block_size,
                       uint32_t aggregators, uint32_t slots, uint32_t window, uint32_t stripe,
                       const Codec& codec, const std::string& arithmetic, uint32_t workers,
                       std::optional<uint32_t> owner) {
             Shape shape;
             if (owner) shape.owner = *owner;
             shape.count = count;
             shape.dtype = dtype_named(dtype);
             shape.block_size = block_size;
             shape.aggregators = aggregators;
             shape.slots = slots;
             shape.window = window;
             shape.stripe = stripe;
             shape.codec = codec;
             shape.arithmetic = Arithmetic::of(arithmetic_named(arithmetic), shape.dtype, workers);
             return shape;
           }),
           py::kw_only(), py::arg("count"), py::arg("dtype"), py::arg("block_size") = 256,
           py::arg("aggregators") = 1, py::arg("slots") = 1, py::arg("window") = 1,
           py::arg("stripe") = 1, py::arg("codec") = Codec(), py::arg("arithmetic") = "float",
           py::arg("workers") = 1, py::arg("owner") = py::none(),
           "arithmetic, workers: as of Arithmetic::of(). owner: of a reduce.")
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
      .def_property_readonly("owner",
                             [](const Shape& s) {
                               return s.for_one() ? std::optional<uint32_t>(s.owner) : std::nullopt;
                             })
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
      .def(py::init([](uint32_t slot, uint32_t round, uint64_t bound,
                       const decltype(PyFrame::blocks)& blocks,
                       const decltype(PyFrame::ahead)& ahead, bool as_named,
                       const std::vector<uint8_t>& exponents) {
             return PyFrame{slot, round, bound, as_named, blocks, ahead, exponents};
           }),
           py::arg("slot") = 0, py::arg("round") = 0, py::arg("bound") = kEnd,
           py::arg("blocks") = decltype(PyFrame::blocks){},
           py::arg("ahead") = decltype(PyFrame::ahead){}, py::arg("as_named") = false,
           py::arg("exponents") = std::vector<uint8_t>{})
      .def_readwrite("slot", &PyFrame::slot)
      .def_readwrite("round", &PyFrame::round)
      .def_readwrite("bound", &PyFrame::bound)
      .def_readwrite("blocks", &PyFrame::blocks)
      .def_readwrite("ahead", &PyFrame::ahead)
      .def_readwrite("exponents", &PyFrame::exponents)
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
  bind_state_machines(m);
  bind_router(m);
}

}  // namespace omnihvd
