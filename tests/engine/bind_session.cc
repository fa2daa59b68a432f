// _engine_tests.session: engines over any transport, and parts of the session.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/auto_streams.h"
#include "engine/session.h"
#include "engine/settings.h"
#include "innetwork/siphash.h"
#include "intercept/polite_yield.h"
#include "memory.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

std::shared_ptr<Engine> engine(const Settings& settings, const std::string& transport) {
  if (transport != "memory") {
    Settings made = settings;
    made.transport = transport;
    return std::make_shared<Engine>(made, Engine::transports_of(made));
  }
  return std::make_shared<Engine>(settings, make_memory_transport);
}

struct AsThoughSumming {
  std::optional<SumUnderWay> sum;
};

}  // namespace

void bind_session(py::module_ m) {
  m.def("engine", &engine, py::arg("settings"), py::arg("transport"));
  m.def(
      "aggregator_host",
      [](const Settings& settings) {
        return std::make_unique<AggregatorHost>(settings, make_memory_transport);
      },
      py::arg("settings"), "Over memory transports.");
  py::class_<AsThoughSumming>(m, "AsThoughSumming",
                              "With this, as while this thread made a sum for Horovod.")
      .def(py::init<>())
      .def("__enter__", [](AsThoughSumming& self) { self.sum.emplace(); })
      .def("__exit__", [](AsThoughSumming& self, py::args) { self.sum.reset(); });
  m.def("throw_in_memory_transports", &throw_in_memory_transports, py::arg("times"));
  m.def("lose_in_memory_transports", &lose_in_memory_transports, py::arg("times"));
  m.def("streams_for", &streams_for, py::arg("link_bytes_per_s"), py::arg("cores"));
  m.def("cores_each", &cores_each, py::arg("allowed"), py::arg("limit"), py::arg("online"),
        py::arg("ranks"));
  m.def("fastest_link", &fastest_link, py::arg("sysfs"));
  m.def("pack_agreed", [](const Settings& s) { return py::bytes(pack_agreed(s)); });
  m.def("agree_on_settings", &agree_on_settings, py::arg("packed"), py::arg("ranks"),
        py::arg("settings"));
  m.def("hmac_sha256", [](const py::bytes& key, const py::bytes& data) {
    return py::bytes(to_string(hmac_sha256(key, data)));
  });
  m.def("siphash", [](const std::string& key, const std::string& data) {
    SipKey words;
    if (key.size() != sizeof words) throw Error("SipHash takes a key of 16 bytes");
    std::memcpy(words.data(), key.data(), sizeof words);
    return siphash(words, reinterpret_cast<const uint8_t*>(data.data()), data.size());
  });
}

}  // namespace omnihvd
