// simulator._core: an allreduce over a simulated network, and random jobs with fault injection.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "base/plugin.h"
#include "engine/auto_streams.h"
#include "protocol/seats.h"
#include "simulator/csrc/bad_session.h"
#include "simulator/csrc/sum.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

using simulation::BadOutcome;
using simulation::Costs;
using simulation::Job;
using simulation::Outcome;

void set_presence(Job& job, const py::array_t<bool, py::array::c_style>& has) {
  if (has.ndim() != 2) throw py::value_error("has: an array of ranks (or 1) by blocks");
  const auto at = has.unchecked<2>();
  job.has.assign(size_t(at.shape(0)), std::vector<bool>(size_t(at.shape(1))));
  for (py::ssize_t rank = 0; rank < at.shape(0); ++rank)
    for (py::ssize_t block = 0; block < at.shape(1); ++block)
      job.has[size_t(rank)][size_t(block)] = at(rank, block);
}

py::dict dict_of(const Outcome& o) {
  py::dict d;
  d["seconds"] = o.seconds;
  d["done_s"] = o.done_s;
  d["events"] = o.events;
  d["messages"] = o.messages;
  d["frames"] = o.frames;
  d["datagrams"] = o.datagrams;
  d["again"] = o.again;
  d["bytes"] = o.bytes;
  d["most_bytes"] = o.most_bytes;
  d["most_peers"] = o.most_peers;
  d["union_blocks"] = o.union_blocks;
  if (!o.goal.empty()) d["goal"] = o.goal;
  return d;
}

py::dict dict_of(const BadOutcome& o) {
  py::dict d;
  d["job"] = o.job;
  d["counts"] = o.counts;
  d["sums"] = o.sums;
  d["events"] = o.events;
  d["messages"] = o.messages;
  d["seconds"] = o.seconds;
  return d;
}

void bind(py::module_& m) {
  py::class_<Costs>(m, "Costs")
      .def(py::init<>())
      .def_readwrite("rate", &Costs::rate)
      .def_readwrite("core_rate", &Costs::core_rate)
      .def_readwrite("delay", &Costs::delay)
      .def_readwrite("message_s", &Costs::message_s)
      .def_readwrite("byte_s", &Costs::byte_s)
      .def_readwrite("inspected_s", &Costs::inspected_s)
      .def_readwrite("begin_s", &Costs::begin_s)
      .def_readwrite("cores", &Costs::cores);
  py::class_<Job>(m, "Job")
      .def(py::init<>())
      .def_readwrite("workers", &Job::workers)
      .def_readwrite("dedicated", &Job::dedicated)
      .def_readwrite("shares", &Job::shares)
      .def_readwrite("fans", &Job::fans)
      .def_readwrite("bytes", &Job::bytes)
      .def_readwrite("block_bytes", &Job::block_bytes)
      .def_readwrite("message_bytes", &Job::message_bytes)
      .def_readwrite("slots", &Job::slots)
      .def_readwrite("streams", &Job::streams)
      .def_readwrite("scan_ahead", &Job::scan_ahead)
      .def_readwrite("loss", &Job::loss)
      .def_readwrite("seed", &Job::seed)
      .def_readwrite("late_s", &Job::late_s)
      .def_readwrite("goal", &Job::goal)
      .def("set_presence", &set_presence, py::arg("has"));
  m.def(
      "run_bad_session",
      [](uint64_t seed, bool long_sums) {
        BadOutcome outcome;
        {
          py::gil_scoped_release release;
          outcome = simulation::run_bad_session(seed, long_sums);
        }
        return dict_of(outcome);
      },
      py::arg("seed"), py::arg("long_sums") = false);
  m.def("streams_for", &streams_for, py::arg("link_bytes_per_s"), py::arg("cores"),
        "Engine threads, by OMNIHVD_STREAMS=auto.");
  m.def("fans_of", &fans_of, py::arg("levels"), py::arg("ranks"), py::arg("dedicated"),
        "By OMNIHVD_LEVELS: how many each level of aggregators joins, from below.");
  m.def(
      "shares_of",
      [](uint32_t ranks, uint32_t dedicated, const std::vector<uint32_t>& fans, uint64_t windows) {
        return Seats(ranks, dedicated, fans).shares(windows);
      },
      py::arg("ranks"), py::arg("dedicated"), py::arg("fans"), py::arg("windows"),
      "Into how many shares a tensor of so many windows is cut.");
  m.def(
      "simulate",
      [](const Job& job, const Costs& costs, const std::optional<py::function>& progress) {
        Outcome outcome;
        {
          py::gil_scoped_release release;
          outcome = simulation::simulate(job, costs, [&](double share) {
            const py::gil_scoped_acquire acquire;
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();  // an interrupt
            if (progress) (*progress)(share);
          });
        }
        return dict_of(outcome);
      },
      py::arg("job"), py::arg("costs"), py::arg("progress") = py::none());
}

}  // namespace
}  // namespace omnihvd

PYBIND11_MODULE(_core, m) {
  py::module_::import("omnihvd._engine");  // for EngineError
  omnihvd::load_part("innetwork");         // for FPISA
  omnihvd::bind(m);
}
