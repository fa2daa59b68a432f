// _engine_tests.protocol.Router: rank 0's, on one level, where it aggregates alone.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "messages.h"
#include "protocol/router.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

constexpr uint64_t kSequence = 1;

class PyRouter : Router::Driver {
 public:
  explicit PyRouter(uint32_t ranks)
      : seats_(ranks, 0, {std::max(ranks, 2u)}), router_(*this, seats_, 0, 0, 1, false) {}

  // Adds rank 0's part in a sum, in place, and has it start slots once.
  void start(const Shape& shape, py::array array) {
    array_ = std::move(array);
    const auto layout = std::make_shared<const Layout>(shape);
    auto tensor = std::make_unique<HostTensor>(*layout, array_.data(), array_.mutable_data());
    ours_ = std::make_shared<Router::WorkerPart>(router_, kSequence, layout, std::move(tensor), 1);
    router_.add(ours_);
    router_.start_slots(*ours_);
  }
  // Takes a message of another rank.
  void take(uint32_t rank, const py::bytes& bytes) {
    const Received received(bytes);
    MessageReader reader = received.reader(Kind::contribution);
    std::optional<Shape> shape;
    if (reader.has_shape()) shape = reader.shape();
    Frame frame;
    while (reader.more()) {
      const auto part = router_.aggregator(kSequence, {1, 0}, shape ? &*shape : nullptr, rank);
      const auto named = [&](uint32_t slot, uint32_t round) {
        return part->aggregator.named(rank, slot, round);
      };
      reader.next(part->layout, 0, named, &frame);
      router_.on_contribution(*part, rank, frame);
    }
  }
  bool work() { return router_.work(); }
  void release() { sending_.clear(); }
  void stop_when_it_sends() { stops_ = true; }
  std::vector<PyMessage> results() { return std::exchange(results_, {}); }

  size_t contributions = 0;  // of rank 0
  size_t sent = 0;           // results

 private:
  void send_up(uint32_t, uint64_t, const Layout&, const Seat&, const Frame&,
               const Router::Kept&) override {
    throw Error("rank 0 aggregates alone");
  }
  void send_down(const std::vector<uint32_t>&, const Router::AggregatorPart& part,
                 const Router::Kept& result) override {
    ++sent;
    sending_.push_back(result);
    Header header;
    header.kind = Kind::result;
    PyMessage& message = results_.emplace_back();
    message.message().begin(header, nullptr);
    message.add(*result, part.layout, 0);
    if (stops_) router_.stop();
  }
  std::shared_ptr<Router::AggregatorPart> begin(uint64_t sequence, const Seat& seat,
                                                const Shape& shape, uint32_t) override {
    return std::make_shared<Router::AggregatorPart>(router_, sequence, seat, shape);
  }
  void disagree(const Router::AggregatorPart&, const Shape&, uint32_t) override {
    throw Error("shapes differ");
  }
  Router::Kept keep(Router::AggregatorPart& part, const Frame& frame) override {
    return router_.lend(part, frame);
  }
  Router::Kept pass_on(const Router::AggregatorPart& part, const Frame& frame,
                       const Router::Kept&) override {
    return Router::copy(frame, part.layout, part.seat.share);
  }
  void contributes(Router::WorkerPart&, uint32_t, const Frame&) override { ++contributions; }

  py::array array_;
  const Seats seats_;
  Router router_;
  std::shared_ptr<Router::WorkerPart> ours_;
  std::vector<Router::Kept> sending_;  // as though they were under way, until release()
  std::vector<PyMessage> results_;
  bool stops_ = false;
};

}  // namespace

void bind_router(py::module_ m) {
  py::class_<PyRouter>(m, "Router")
      .def(py::init<uint32_t>(), py::arg("ranks"))
      .def("start", &PyRouter::start, py::arg("shape"), py::arg("array"))
      .def("take", &PyRouter::take, py::arg("rank"), py::arg("message"))
      .def("work", &PyRouter::work)
      .def("release", &PyRouter::release)
      .def("stop_when_it_sends", &PyRouter::stop_when_it_sends)
      .def("results", &PyRouter::results)
      .def_readonly("contributions", &PyRouter::contributions)
      .def_readonly("sent", &PyRouter::sent);
}

}  // namespace omnihvd
