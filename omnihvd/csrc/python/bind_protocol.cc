// The protocol's state machines for tests: messages are bytes, tensors are NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "protocol/aggregator.h"
#include "protocol/tensor.h"
#include "protocol/wire.h"
#include "protocol/worker.h"

namespace py = pybind11;

namespace omnihvd {

void bind_block_ops(py::module_ m);

namespace {

std::string flatten(Message& message) {
  message.finish();
  std::string bytes;
  for (const Slice& slice : message.slices())
    bytes.append(static_cast<const char*>(slice.data), slice.size);
  message.clear();
  return bytes;
}

MessageReader reader_of(const std::string& message) {
  return {reinterpret_cast<const uint8_t*>(message.data()), message.size()};
}

// One worker with the tensor that it sums, over all streams' slots.
class PyWorker {
 public:
  PyWorker(const Shape& shape, uint32_t rank, py::array in, py::array out, uint32_t scan_ahead)
      : in_(in),
        out_(out),
        rank_(rank),
        layout_(shape),
        tensor_(layout_, in_.data(), out_.mutable_data()),
        worker_(layout_, tensor_, scan_ahead, 0, 1) {}

  std::optional<std::pair<uint32_t, py::bytes>> start() {
    uint32_t aggregator;
    if (!worker_.start(&aggregator, &frame_)) return std::nullopt;
    return std::make_pair(aggregator, encode(&layout_.shape()));
  }

  std::vector<py::bytes> on_message(const std::string& message) {
    MessageReader reader = reader_of(message);
    std::vector<py::bytes> replies;
    Frame result;
    while (reader.next(layout_, reader.header().from, &result))
      if (worker_.on_result(reader.header().from, result, &frame_))
        replies.push_back(encode(nullptr));
    return replies;
  }

  bool done() const { return worker_.done(); }
  uint64_t nonzero_blocks() const { return worker_.nonzero_blocks(); }
  uint64_t result_blocks() const { return worker_.result_blocks(); }

 private:
  py::bytes encode(const Shape* shape) {
    Header header;
    header.kind = Kind::contribution;
    header.from = rank_;
    message_.begin(header, shape);
    message_.add(frame_);
    return flatten(message_);
  }

  py::array in_, out_;
  uint32_t rank_;
  Layout layout_;
  HostTensor tensor_;
  Worker worker_;
  Frame frame_;
  Message message_;
};

// One aggregator. Results are kept until the test says that they are sent.
class PyAggregator : Aggregator::Sink {
 public:
  PyAggregator(const Shape& shape, uint32_t index, uint32_t workers, bool ordered)
      : index_(index), layout_(shape), aggregator_(layout_, index, workers, 0, 1, ordered) {}

  using Results = std::vector<std::tuple<uint32_t, uint32_t, py::bytes>>;  // slot, round, message

  Results on_message(const std::string& message) {
    MessageReader reader = reader_of(message);
    if (reader.has_shape() && reader.shape() != layout_.shape()) throw Error("shapes differ");
    Frame frame;
    while (reader.next(layout_, index_, &frame))
      aggregator_.on_contribution(reader.header().from, frame, *this);
    return std::exchange(results_, {});
  }

  Results released(uint32_t slot, uint32_t round) {
    aggregator_.released(slot, round, *this);
    return std::exchange(results_, {});
  }

  bool done() const { return aggregator_.done(); }
  std::vector<uint32_t> awaited() const { return aggregator_.awaited(); }
  size_t accumulator_bytes() const { return aggregator_.accumulator_bytes(); }

 private:
  void result(const Frame& frame) override {
    Header header;
    header.kind = Kind::result;
    header.from = index_;
    message_.begin(header, nullptr);
    message_.add(frame);
    results_.emplace_back(frame.slot, frame.round, flatten(message_));
  }

  uint32_t index_;
  Layout layout_;
  Aggregator aggregator_;
  Message message_;
  Results results_;
};

DType dtype_of(const std::string& name) {
  for (int i = 0; i < kDTypes; ++i)
    if (name == name_of(DType(i))) return DType(i);
  throw py::value_error("no such dtype: " + name);
}

}  // namespace

void bind_protocol(py::module_ m) {
  bind_block_ops(m);
  py::class_<Shape>(m, "Shape")
      .def(py::init([](uint64_t count, const std::string& dtype, uint32_t block_size,
                       uint32_t aggregators, uint32_t slots, uint32_t window, uint32_t stripe) {
             Shape shape;
             shape.count = count;
             shape.dtype = dtype_of(dtype);
             shape.block_size = block_size;
             shape.aggregators = aggregators;
             shape.slots = slots;
             shape.window = window;
             shape.stripe = stripe;
             return shape;
           }),
           py::kw_only(), py::arg("count"), py::arg("dtype"), py::arg("block_size") = 256,
           py::arg("aggregators") = 1, py::arg("slots") = 1, py::arg("window") = 1,
           py::arg("stripe") = 1)
      .def_static(
          "fit",
          [](uint64_t count, const std::string& dtype, uint32_t block_size, uint32_t aggregators,
             uint32_t max_slots, uint32_t message_bytes) {
            return Shape::fit(count, dtype_of(dtype), block_size, aggregators, max_slots,
                              message_bytes);
          },
          py::kw_only(), py::arg("count"), py::arg("dtype"), py::arg("block_size"),
          py::arg("aggregators"), py::arg("max_slots"), py::arg("message_bytes"))
      .def_readonly("count", &Shape::count)
      .def_readonly("block_size", &Shape::block_size)
      .def_readonly("aggregators", &Shape::aggregators)
      .def_readonly("slots", &Shape::slots)
      .def_readonly("window", &Shape::window)
      .def_readonly("stripe", &Shape::stripe)
      .def_property_readonly("blocks", &Shape::blocks)
      .def("positions", [](const Shape& s, uint32_t slot) { return Layout(s).positions(slot); })
      .def("block_at", [](const Shape& s, uint32_t aggregator, uint32_t slot,
                          uint64_t position) { return Layout(s).block_at(aggregator, slot, position); })
      .def("place_of", [](const Shape& s, uint64_t block) {
        const Layout::Place place = Layout(s).place_of(block);
        return std::make_tuple(place.aggregator, place.slot, place.position);
      });
  py::class_<PyWorker>(m, "Worker")
      .def(py::init<const Shape&, uint32_t, py::array, py::array, uint32_t>(), py::arg("shape"),
           py::arg("rank"), py::arg("input"), py::arg("output"), py::arg("scan_ahead") = 2048)
      .def("start", &PyWorker::start)
      .def("on_message", &PyWorker::on_message)
      .def_property_readonly("done", &PyWorker::done)
      .def_property_readonly("nonzero_blocks", &PyWorker::nonzero_blocks)
      .def_property_readonly("result_blocks", &PyWorker::result_blocks);
  py::class_<PyAggregator>(m, "Aggregator")
      .def(py::init<const Shape&, uint32_t, uint32_t, bool>(), py::arg("shape"), py::arg("index"),
           py::arg("workers"), py::arg("ordered") = false)
      .def("on_message", &PyAggregator::on_message)
      .def("released", &PyAggregator::released)
      .def_property_readonly("done", &PyAggregator::done)
      .def_property_readonly("awaited", &PyAggregator::awaited)
      .def_property_readonly("accumulator_bytes", &PyAggregator::accumulator_bytes);
}

}  // namespace omnihvd
