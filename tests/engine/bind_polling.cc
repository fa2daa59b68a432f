// _engine_tests.session.Polling: when a progress thread sleeps, by a clock that is a number.
#include <pybind11/pybind11.h>

#include "engine/polling.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

Polling::Clock::time_point at(int64_t us) {
  return Polling::Clock::time_point(std::chrono::microseconds(us));
}

}  // namespace

void bind_polling(py::module_ m) {
  py::class_<Polling>(m, "Polling")
      .def(py::init([](int64_t limit_us) {
             return std::make_unique<Polling>(std::chrono::microseconds(limit_us));
           }),
           py::arg("limit_us"))
      .def(
          "on_work", [](Polling& self, int64_t us) { self.on_work(at(us)); }, py::arg("us"))
      .def(
          "may_sleep", [](Polling& self, int64_t us) { return self.may_sleep(at(us)); },
          py::arg("us"));
}

}  // namespace omnihvd
