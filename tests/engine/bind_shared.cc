// _engine_tests.shared: sums over shared memory.
#include <pybind11/functional.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/shared_memory/shared_sum.h"
#include "algorithms/shared_memory/small_sum.h"
#include "algorithms/shared_memory/stores.h"
#include "base/error.h"
#include "engine/host_facts.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {

static void interrupt(SharedSum& sum, const std::string& why) { sum.abort(why); }

// SmallSum, with the arguments of SharedSum.
class SmallSums {
 public:
  explicit SmallSums(std::unique_ptr<SmallSum> sum) : sum_(std::move(sum)) {}
  uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype, const Codec& codec) {
    const Call call{in, out, count, dtype, codec};
    if (!sum_->takes(call)) throw Error("not a small sum");
    sum_->allreduce(call);
    return 0;
  }
  void pass(uint64_t count, DType dtype) { sum_->pass({nullptr, nullptr, count, dtype}); }
  void abort(const std::string& why) { sum_->abort(why); }
  // The seconds of each of so many calls.
  std::vector<double> times(uint64_t count, int calls) {
    std::vector<float> tensor(count);
    std::vector<double> seconds;
    for (int i = 0; i < calls; ++i) {
      const auto begun = std::chrono::steady_clock::now();
      sum_->allreduce({tensor.data(), tensor.data(), count, DType::f32});
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
      seconds.push_back(took.count());
    }
    return seconds;
  }

 private:
  const std::unique_ptr<SmallSum> sum_;
};

static void interrupt(SmallSums& sum, const std::string& why) { sum.abort(why); }

static bool core_each(const std::vector<std::pair<std::vector<int>, double>>& ranks) {
  std::vector<Cores> all;
  for (const auto& [cores, limit] : ranks) {
    Cores& rank = all.emplace_back();
    for (const int core : cores) CPU_SET(core, &rank.allowed);
    rank.limit = limit;
  }
  return has_core_each(all);
}

// A sum in two steps with nothing in between. part: this rank's blocks, of so many.
static uint64_t in_two_steps(SharedSum& sum, const py::array& in, py::array out, uint64_t blocks,
                             std::pair<uint64_t, uint64_t> part, const Codec& codec) {
  const DType dtype = dtype_of(in, "");
  const SharedSum::Blocks mine{part.first, part.second};
  std::vector<uint8_t> has(blocks);
  const void* const source = in.data();
  void* const target = out.mutable_data();
  const uint64_t count = uint64_t(in.size());
  const py::gil_scoped_release release;
  sum.reduce_scatter(source, target, count, dtype, codec, mine, has.data());
  return sum.allgather(target, count, dtype, mine, has.data(), source != target);
}

// Why the ranks of these hosts do not reduce in two levels; empty: they do.
static std::string two_levels_obstacle(const Settings& settings, int rank,
                                       const std::vector<std::string>& hosts,
                                       py::function allgather) {
  PyExchange exchange(rank, int(hosts.size()), std::move(allgather));
  const py::gil_scoped_release release;
  std::string obstacle;
  static_cast<void>(connect_two_levels(exchange, settings, hosts, &obstacle));
  return obstacle;
}

static std::vector<int> cores_here() {
  const Cores here = cores_of_this_thread();
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &here.allowed)) cores.push_back(core);
  return cores;
}

void bind_shared(py::module_ m) {
  m.def("chunk_bytes", &chunk_bytes, py::arg("ranks"));
  m.def("has_core_each", &core_each, py::arg("ranks"), "ranks: the cores of each, and its limit.");
  m.def(
      "cpu_limit", [](const std::string& root) { return cores_of_this_thread(root).limit; },
      py::arg("root"));
  m.def("cores_here", &cores_here, "Those that this thread may use.");
  m.def("two_levels_obstacle", &two_levels_obstacle, py::arg("settings"), py::arg("rank"),
        py::arg("hosts"), py::arg("allgather"));
  py::class_<Stores>(m, "Stores")
      .def(py::init<>())
      .def("next", &Stores::next)
      .def("took", &Stores::took, py::arg("past"), py::arg("seconds"));
  m.def(
      "copy_past_caches",
      [](py::array_t<uint8_t> to, const py::array_t<uint8_t>& from) {
        copy_past_caches(to.mutable_data(), from.data(), size_t(from.size()));
        finish_stores();
      },
      py::arg("to"), py::arg("from_"));
  py::class_<SmallSums>(m, "SmallSum")
      .def(py::init([](const Settings& settings, int rank, int size, py::function allgather) {
             PyExchange exchange(rank, size, std::move(allgather));
             py::gil_scoped_release release;
             auto sum = SmallSum::create(exchange, settings, "here");
             if (!sum) throw Error("no shared memory");
             return std::make_unique<SmallSums>(std::move(sum));
           }),
           py::arg("settings"), py::arg("rank"), py::arg("size"), py::arg("allgather"))
      .def("allreduce", &allreduce<SmallSums>, py::arg("input"), py::arg("output"),
           py::arg("dtype") = "", py::arg("codec") = Codec())
      .def(
          "pass_by",
          [](SmallSums& sum, uint64_t count, const std::string& dtype) {
            sum.pass(count, dtype_named(dtype));
          },
          py::arg("count"), py::arg("dtype"))
      .def("times", &SmallSums::times, py::arg("count"), py::arg("calls"),
           py::call_guard<py::gil_scoped_release>());
  py::class_<SharedSum>(m, "SharedSum")
      .def(py::init([](const Settings& settings, int rank, int size, py::function allgather) {
             PyExchange exchange(rank, size, std::move(allgather));
             py::gil_scoped_release release;
             std::string obstacle;
             auto sum = SharedSum::create(exchange, settings, "here", &obstacle);
             if (!sum) throw Error(obstacle);
             return sum;
           }),
           py::arg("settings"), py::arg("rank"), py::arg("size"), py::arg("allgather"))
      .def("allreduce", &allreduce<SharedSum>, py::arg("input"), py::arg("output"),
           py::arg("dtype") = "", py::arg("codec") = Codec())
      .def("in_two_steps", &in_two_steps, py::arg("input"), py::arg("output"), py::arg("blocks"),
           py::arg("part"), py::arg("codec") = Codec());
}

}  // namespace omnihvd
