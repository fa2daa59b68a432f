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

using Presence = py::array_t<bool, py::array::c_style>;

std::vector<std::vector<bool>> presence_of(const Presence& has) {
  const auto at = has.unchecked<2>();  // ranks, or 1, by blocks
  std::vector<std::vector<bool>> rows(size_t(at.shape(0)), std::vector<bool>(size_t(at.shape(1))));
  for (py::ssize_t rank = 0; rank < at.shape(0); ++rank)
    for (py::ssize_t block = 0; block < at.shape(1); ++block)
      rows[size_t(rank)][size_t(block)] = at(rank, block);
  return rows;
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
  using py::arg;
  const py::kw_only named;
  py::class_<Costs>(m, "Costs")
      .def(py::init<double, double, double, double, double, double, double, uint32_t>(), named,
           arg("rate"), arg("core_rate"), arg("delay"), arg("message_s"), arg("byte_s"),
           arg("inspected_s"), arg("begin_s"), arg("cores"));
  py::class_<Job>(m, "Job").def(
      py::init([](uint32_t workers, uint32_t dedicated, uint32_t shares,
                  const std::vector<uint32_t>& fans, uint64_t bytes, uint32_t block_bytes,
                  uint32_t message_bytes, uint32_t slots, uint32_t streams, uint32_t scan_ahead,
                  double loss, double late_s, bool goal, const Presence& has) {
        return Job{workers, dedicated, shares,     fans, bytes,  block_bytes, message_bytes,
                   slots,   streams,   scan_ahead, loss, late_s, goal,        presence_of(has)};
      }),
      named, arg("workers"), arg("dedicated"), arg("shares"), arg("fans"), arg("bytes"),
      arg("block_bytes"), arg("message_bytes"), arg("slots"), arg("streams"), arg("scan_ahead"),
      arg("loss"), arg("late_s"), arg("goal"), arg("has"));
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
