// The Python module omnihvd.inline._core: in-network aggregators in user space, and their workers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "innetwork/client.h"
#include "innetwork/counts_dict.h"
#include "innetwork/server.h"
#include "python/signals.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// If a signal handler raises, ends the wait with that exception.
InlineClient::Meanwhile looking_at(Signals& signals) {
  const auto look = [&signals] {
    if (const std::string why = signals.run(); !why.empty()) throw Error(why);
  };
  return {look, uint64_t(std::chrono::microseconds(Signals::kEvery).count())};
}

std::unique_ptr<InlineServer> make_server(const std::string& host, uint16_t port,
                                          const std::string& secret, const std::string& group,
                                          uint32_t jobs, uint16_t slots, uint64_t plane,
                                          uint64_t interface) {
  return std::make_unique<InlineServer>(
      InlineServer::Options{secret, host, port, group, jobs, slots},
      reinterpret_cast<InlinePlane*>(plane), reinterpret_cast<InlineInterface*>(interface));
}

std::unique_ptr<InlineClient> make_client(const std::string& host, uint16_t port,
                                          const std::string& secret, uint64_t session,
                                          uint32_t rank, uint32_t ranks, double patience_s,
                                          double workers_patience_s, uint8_t numbers) {
  InlineClient::Options options;
  options.host = host;
  options.port = port;
  options.secret = secret;
  options.session = session;
  options.rank = rank;
  options.ranks = ranks;
  options.patience_s = patience_s;
  options.workers_patience_s = workers_patience_s;
  options.numbers = numbers;
  Signals signals;
  std::unique_ptr<InlineClient> client;
  signals.during([&] { client = std::make_unique<InlineClient>(options, looking_at(signals)); });
  return client;
}

void sum(InlineClient& client, py::array& values, bool dense) {
  const DType dtype = dtype_of(values, "");
  if (!(values.flags() & py::array::c_style) || !inline_takes(dtype))
    throw py::value_error("an in-network aggregator takes no such array");
  void* const data = values.mutable_data();
  const auto count = uint64_t(values.size());
  Signals signals;
  signals.during([&] { client.sum(data, count, dtype, dense, looking_at(signals)); });
}

py::dict stats_of(const InlineClient& client) {
  const SlotCounts& counts = client.worker().counts();
  py::dict stats;
  stats["sent"] = counts.sent;
  stats["again"] = counts.again;
  stats["blocks"] = counts.with_block;
  stats["round_trip_us"] = client.worker().round_trip();
  return stats;
}

}  // namespace
}  // namespace omnihvd

PYBIND11_MODULE(_core, m) {
  using namespace omnihvd;
  m.attr("MOST_WORKERS") = INLINE_WORKERS;
  m.attr("BLOCK") = INLINE_ELEMENTS;
  py::class_<InlineServer>(m, "Server", "Where workers join, and, without a plane, sums are made.")
      .def(py::init(&make_server), py::arg("host"), py::arg("port"), py::arg("secret"),
           py::arg("group"), py::arg("jobs"), py::arg("slots"), py::arg("plane") = 0,
           py::arg("interface") = 0)
      .def("run", &InlineServer::run, py::call_guard<py::gil_scoped_release>(), "Until stop().")
      .def("stop", &InlineServer::stop)
      .def_property_readonly("port", &InlineServer::port)
      .def(
          "counts", [](const InlineServer& server) { return dict_of_counts(server.counts()); },
          "Outcomes of contributions: {name: number}.");
  py::class_<InlineClient>(m, "Client", "A worker: joins its job when it is made.")
      .def(py::init(&make_client), py::arg("host"), py::arg("port"), py::arg("secret"),
           py::arg("session"), py::arg("rank"), py::arg("ranks"), py::arg("patience_s"),
           py::arg("workers_patience_s"), py::arg("numbers") = uint8_t{INLINE_INT32})
      .def("sum", &sum, py::arg("values"), py::arg("dense"),
           "In place, over all workers: int32, float32 or float16.")
      .def("stats", &stats_of);
}
