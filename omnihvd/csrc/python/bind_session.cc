// omnihvd._engine.session: settings, statistics, engines over any out-of-band allgather, dedicated
// aggregators.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/own_process.h"
#include "engine/group_info.h"
#include "engine/session.h"
#include "engine/trace.h"
#include "intercept/polite_yield.h"
#include "protocol/wire.h"
#include "python/sums.h"
#include "transport/registry.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

template <typename Counts>
using Names = std::initializer_list<std::pair<const char*, std::atomic<uint64_t> Counts::*>>;

template <typename Counts>
py::dict dict_of(const Counts& counts, Names<Counts> names) {
  py::dict d;
  for (const auto& [name, count] : names) d[name] = (counts.*count).load();
  return d;
}

py::dict ways_dict() {
  py::dict ways;
  for (const Way counted : kCountedWays) {
    const WayStats& way = stats().ways[size_t(counted)];
    py::dict entry = dict_of(way, {{"calls", &WayStats::calls}, {"bytes", &WayStats::bytes}});
    entry["seconds"] = double(way.nanoseconds.load()) / 1e9;
    ways[name_of(counted)] = entry;
  }
  return ways;
}

void count_rows(uint64_t own, uint64_t gathered, uint64_t in_union, uint64_t dense) {
  RowStats& rows = stats().rows;
  rows.gradients += 1;
  rows.own_bytes += own;
  rows.gathered_bytes += gathered;
  rows.union_bytes += in_union;
  rows.dense_bytes += dense;
}

void count_pass_for(const std::string& reason, uint64_t bytes) {
  const auto* const found = std::find(std::begin(kReasonNames), std::end(kReasonNames), reason);
  if (found == std::end(kReasonNames)) throw py::value_error("no reason: " + reason);
  count_pass(Reason(found - kReasonNames), bytes);
}

py::dict stats_dict() {
#define OMNIHVD_COUNTER(name) {#name, &Stats::name},
  py::dict d = dict_of(stats(), {OMNIHVD_COUNTERS(OMNIHVD_COUNTER)});
#undef OMNIHVD_COUNTER
  const Naps slept = naps();
  d["naps"] = slept.count;
  d["nap_seconds"] = slept.seconds;
  py::dict passed;
  for (const auto& [reason, pass] : passes()) {
    py::dict entry;
    entry["calls"] = pass.calls;
    entry["bytes"] = pass.bytes;
    passed[name_of(reason)] = entry;
  }
  d["passed"] = passed;
  d["ways"] = ways_dict();
  d["sparse"] = dict_of(stats().rows, {{"gradients", &RowStats::gradients},
                                       {"own_bytes", &RowStats::own_bytes},
                                       {"gathered_bytes", &RowStats::gathered_bytes},
                                       {"union_bytes", &RowStats::union_bytes},
                                       {"dense_bytes", &RowStats::dense_bytes}});
  d["codecs"] = dict_of(stats().codecs, {{"blocks", &CodecStats::blocks},
                                         {"packed_blocks", &CodecStats::packed_blocks},
                                         {"plain_blocks", &CodecStats::plain_blocks},
                                         {"bytes", &CodecStats::bytes},
                                         {"plain_bytes", &CodecStats::plain_bytes}});
  d["datagrams"] = dict_of(packet_counts(), {{"sent", &PacketCounts::sent},
                                             {"again", &PacketCounts::again},
                                             {"received", &PacketCounts::received},
                                             {"repeated", &PacketCounts::repeated},
                                             {"refused", &PacketCounts::refused}});
  return d;
}

double monotonic(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

py::list calls_list() {
  py::list list;
  for (const PastCall& call : take_calls()) {
    py::dict d;
    d["way"] = name_of(call.way);
    d["bytes"] = call.bytes;
    d["begun"] = monotonic(call.begun);
    d["ended"] = monotonic(call.ended);
    d["bytes_sent"] = call.bytes_sent;
    d["blocks"] = call.blocks;
    d["nonzero_blocks"] = call.nonzero_blocks;
    d["result_blocks"] = call.result_blocks;
    list.append(d);
  }
  return list;
}

// The Python attribute of a setting: OMNIHVD_TIMEOUT is timeout_s.
template <typename Member>
std::string attribute(const Setting& setting, Member) {
  std::string name = setting.name.substr(sizeof "OMNIHVD_" - 1);
  for (char& c : name) c = char(std::tolower(c));
  constexpr bool seconds = std::is_same_v<Member, double Settings::*> ||
                           std::is_same_v<Member, std::optional<double> Settings::*>;
  return name + (seconds ? "_s" : "");
}

void bind_settings(py::module_& m) {
  py::class_<Settings> settings(m, "Settings");
  settings.def(py::init<>());
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> docs;
  for (const Setting& setting : all_settings()) {
    docs.emplace_back(setting.name, setting.default_value, setting.allowed, setting.help);
    std::visit(
        [&](auto member) {
          const std::string name = attribute(setting, member);
          if constexpr (std::is_same_v<decltype(member), std::monostate>)
            settings.def_property(name.c_str(), setting.show, setting.parse);
          else
            settings.def_readwrite(name.c_str(), member);
        },
        setting.member);
  }
  m.def("settings_from_environment", &settings_from_environment);
  m.def("setting_docs", [docs] { return docs; });
}

void bind_process(py::module_& m) {
  m.def("stats", &stats_dict);
  m.def("summary", &summary, py::arg("original"));
  m.def("count_pass", &count_pass_for, py::arg("reason"), py::arg("bytes"),
        "Counts a call that is left to the original library; as stats()[\"passed\"] has it.");
  m.def(
      "stop",
      [](const char* original) {
        stop_process_engine();
        log_summary(original);
      },
      py::arg("original"), "Ends this process's engine, and says what it did, once.");
  m.def("count_rows", &count_rows, py::arg("own_bytes"), py::arg("gathered_bytes"),
        py::arg("union_bytes"), py::arg("dense_bytes"));
  m.def("set_log_rank", &set_log_rank, py::arg("rank"));
  m.def("keep_calls", &keep_calls, "From now on calls are kept one by one.");
  m.def("take_calls", &calls_list,
        "Those kept since the last time, as dicts; times are of CLOCK_MONOTONIC.");
  m.def("last_ranks", &last_ranks);
  m.def("hosts_of_groups", &hosts_of_groups,
        "Names of the hosts with ranks that have been in a group with this one.");
  m.def("write_trace", &write_trace);
  m.def("last_error", &last_error, "The last error that the engine logged; empty: none.");
}

void bind_engine(py::module_& m) {
  py::class_<Group, std::shared_ptr<Group>>(m, "Group")
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("size", &Group::size)
      .def("allreduce", &allreduce<Group>, py::arg("input"), py::arg("output"),
           py::arg("dtype") = "", py::arg("codec") = Codec())
      .def("reduce_scatter", &reduce_scatter<Group>, py::arg("input"), py::arg("output"),
           py::arg("shares"), py::arg("dtype") = "", py::arg("codec") = Codec());
  py::class_<Engine, std::shared_ptr<Engine>>(m, "Engine")
      .def(py::init([](const Settings& settings) {
             return std::make_shared<Engine>(settings, Engine::transports_of(settings));
           }),
           py::arg("settings"))
      .def(
          "join",
          [](Engine& engine, int rank, int size, py::function allgather) {
            PyExchange exchange(rank, size, std::move(allgather));
            std::shared_ptr<Group> group;
            Signals().during([&] { group = engine.join(exchange, engine.settings()); });
            return group;
          },
          py::arg("rank"), py::arg("size"), py::arg("allgather"))
      .def("describe_transport", &Engine::describe_transport);
}

void bind_aggregator_host(py::module_& m) {
  py::class_<AggregatorHost>(m, "AggregatorHost")
      .def(py::init([](const Settings& settings) {
             return std::make_unique<AggregatorHost>(settings, Engine::transports_of(settings));
           }),
           py::arg("settings"), py::call_guard<py::gil_scoped_release>())
      .def("addresses",
           [](AggregatorHost& host) {
             const std::vector<std::string> addresses = [&] {
               const py::gil_scoped_release release;
               return host.addresses();
             }();
             return std::vector<py::bytes>(addresses.begin(), addresses.end());
           })
      .def("admit", &AggregatorHost::admit, py::arg("description"), py::arg("secret"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_session(py::module_ m) {
  py::class_<OwnProcess>(m, "OwnProcess", "The process in which this was made.")
      .def(py::init<>())
      .def("is_this", &OwnProcess::is_this)
      .def("check", &OwnProcess::check, "EngineError in a child that was forked off.");
  m.attr("protocol") = int(kWireVersion);
  bind_settings(m);
  bind_process(m);
  bind_engine(m);
  bind_aggregator_host(m);
}

}  // namespace omnihvd
