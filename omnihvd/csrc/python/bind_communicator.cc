// omnihvd._engine.session.Communicator: sums by all algorithms, over a library written in Python,
// as torch.distributed's Gloo appears to it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/huge_pages.h"
#include "base/time_limits.h"
#include "communicator/communicator.h"
#include "engine/stats.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// A Library over the methods sum(view, dtype), unite(view) and tell(view) of a Python object, in
// place on views of memory; for reduce-scatters, with equal shares, over scatter(in, out, dtype).
class OverMethods : public Library {
 public:
  OverMethods(const Exchange& exchange, DType dtype, py::handle object, bool scatters)
      : exchange_(exchange), dtype_(dtype), object_(object), scatters_(scatters) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  void run(const void* in, void* out, uint64_t count) override {
    const size_t bytes = count * size_of(dtype_);
    if (scatters_)
      return in_python([&] {
        object_.attr("scatter")(view(const_cast<void*>(in), bytes),
                                view(out, bytes / size_t(size())), name_of(dtype_));
      });
    if (in != out) std::memcpy(out, in, bytes);
    in_python([&] { object_.attr("sum")(view(out, bytes), name_of(dtype_)); });
  }
  void unite(uint8_t* bits, size_t bytes) override {
    in_python([&] { object_.attr("unite")(view(bits, bytes)); });
  }
  void tell(void* data, size_t bytes) override {
    in_python([&] { object_.attr("tell")(view(data, bytes)); });
  }

 private:
  static py::memoryview view(void* data, size_t bytes) {
    return py::memoryview::from_memory(data, ssize_t(bytes));
  }

  const Exchange& exchange_;
  const DType dtype_;
  const py::handle object_;
  const bool scatters_;
};

class PyCommunicator {
 public:
  PyCommunicator(int rank, int size) : rank_(rank), size_(size), sums_(size, Beside::torch_gloo) {}

  void meet(py::object allgather) {
    PyExchange exchange(rank_, size_, std::move(allgather));
    Signals().during([&] { sums_.meet(exchange); });
  }

  double set_timeout(double seconds) {
    sums_.set_timeout(seconds);
    return sums_.timeout_s();
  }

  const char* refusal(uint64_t bytes, bool any_size, bool scatters) const {
    const Reason reason = sums_.refusal(bytes, any_size, scatters);
    return reason == Reason::none ? "" : name_of(reason);
  }

  void sum(uintptr_t data, uint64_t count, const std::string& name, py::object object,
           const Codec& codec, bool takes_small) {
    void* const at = reinterpret_cast<void*>(data);
    Call call{at, at, count, dtype_named(name), codec};
    call.takes_small = takes_small;
    PyExchange exchange(rank_, size_, object.attr("allgather"));
    OverMethods library(exchange, call.dtype, object, false);
    waiting([&] { sums_.sum(call, exchange, library); });
  }

  bool leaves_first(uint64_t bytes, bool scatters) { return sums_.leaves_first(bytes, scatters); }
  bool left_first() const { return sums_.left_first(); }

  bool sum_small(uintptr_t data, uint64_t count, int dtype) {
    void* const at = reinterpret_cast<void*>(data);
    const Call call{at, at, count, DType(dtype)};
    bool made = false;
    waiting([&] { made = sums_.sum_small(call); });
    return made;
  }

  bool takes_rows(const std::string& name, uint64_t length) const {
    return sums_.takes_lists(dtype_named(name), length);
  }

  uint64_t sum_rows(uintptr_t values, uintptr_t indices, uint64_t count, uint64_t length,
                    uint64_t rows, const std::string& name, py::object allgather) {
    const ListCall call{reinterpret_cast<const void*>(values),
                        reinterpret_cast<const int64_t*>(indices),
                        count,
                        length,
                        rows,
                        dtype_named(name)};
    PyExchange exchange(rank_, size_, std::move(allgather));
    waiting([&] { listed_ = &sums_.sum_lists(call, exchange); });
    listed_bytes_ = listed_->count() * call.row_bytes();
    // The caller counts the rows that no rank has, as for the matrix of a union.
    const uint64_t absent = rows - listed_->count(), bytes = absent * call.row_bytes();
    stats().ways[size_t(Way::stream)].bytes -= bytes;
    stats().bytes_in -= bytes;
    stats().ring_bytes -= ring_bytes(uint64_t(size_), bytes);
    stats().blocks -= absent;
    return listed_->count();
  }

  void take_rows(uintptr_t numbers, uintptr_t values) const {
    const py::gil_scoped_release release;
    ask_for_huge_pages(reinterpret_cast<void*>(values), listed_bytes_);
    if (listed_)
      listed_->take(reinterpret_cast<int64_t*>(numbers), reinterpret_cast<void*>(values));
  }

  void reduce_scatter(uintptr_t in, uintptr_t out, uint64_t share, const std::string& name,
                      py::object object, bool takes_small) {
    const std::vector<uint64_t> shares(size_t(size_), share);
    Call call{reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out),
              share * uint64_t(size_), dtype_named(name)};
    call.op = Op::reduce_scatter;
    call.shares = &shares;
    call.takes_small = takes_small;
    PyExchange exchange(rank_, size_, object.attr("allgather"));
    OverMethods library(exchange, call.dtype, object, true);
    waiting([&] { sums_.sum(call, exchange, library); });
  }

 private:
  template <typename Sum>
  void waiting(Sum sum) {
    interruptible([&](const std::string& why) { sums_.interrupt(rank_, why); }, sum);
  }

  const int rank_, size_;
  Communicator sums_;
  const ListedSums* listed_ = nullptr;  // the last sum
  uint64_t listed_bytes_ = 0;
};

}  // namespace

void bind_communicator(py::module_ m) {
  std::vector<std::string> dtypes;
  for (const DTypeInfo& dtype : kDTypeInfo) dtypes.push_back(dtype.name);
  m.attr("dtypes") = dtypes;
  py::class_<PyCommunicator>(m, "Communicator", "Ranks that sum together. One thread at a time.")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("size"))
      .def("set_timeout", &PyCommunicator::set_timeout, py::arg("seconds"),
           "Bounds later sums of ranks that have met; 0: no bound. Returns the bound that holds: "
           "OMNIHVD_TIMEOUT, if there is one.")
      .def("meet", &PyCommunicator::meet, py::arg("allgather"),
           "Collective, once. allgather(bytes) -> every rank's bytes. EngineError, on all ranks, "
           "if the settings of one are wrong.")
      .def("refusal", &PyCommunicator::refusal, py::arg("bytes"), py::arg("any_size") = false,
           py::arg("scatters") = false,
           "Why a tensor of this size is left to the library, on all ranks alike; empty: it is "
           "not. scatters: it is the input of a reduce-scatter.")
      .def("leaves_first", &PyCommunicator::leaves_first, py::arg("bytes"),
           py::arg("scatters") = false,
           "Whether the library makes this sum, which was not refused or refused as small, since "
           "it is one of the first; counts it. All ranks ask for the same sums.")
      .def("left_first", &PyCommunicator::left_first,
           "Whether the first sums are over, which the library makes.")
      .def("sum", &PyCommunicator::sum, py::arg("data"), py::arg("count"), py::arg("dtype"),
           py::arg("library"), py::arg("codec") = Codec(), py::arg("takes_small") = false,
           "Collective: the sum over the ranks, in place, of `count` elements at the address "
           "`data`. library: an object with allgather(bytes), and with sum(view, dtype), "
           "unite(view) (bitwise or) and tell(view) (rank 0's, to all), in place on views of "
           "memory. codec: of float32. takes_small: whatever the size. EngineError, and then at "
           "each later call. Other Python threads run meanwhile.")
      .def("sum_small", &PyCommunicator::sum_small, py::arg("data"), py::arg("count"),
           py::arg("dtype"),
           "The same sum, if the ranks have made one before and memory that they share can make "
           "it; it calls no Python. False: not, on all ranks alike. dtype: its place in `dtypes`.")
      .def("takes_rows", &PyCommunicator::takes_rows, py::arg("dtype"), py::arg("length"),
           "Whether sum_rows() suits rows of `length` elements, on all ranks alike. After meet().")
      .def("sum_rows", &PyCommunicator::sum_rows, py::arg("values"), py::arg("indices"),
           py::arg("count"), py::arg("length"), py::arg("rows"), py::arg("dtype"),
           py::arg("allgather"),
           "Collective: the sum over the ranks of tensors of `rows` rows of `length` elements. "
           "This rank has `count` of them at the address `values`, with their numbers, int64, at "
           "`indices`, in any order; all others are zero. Returns how many rows the sum has, for "
           "take_rows(). Fails as sum() does.")
      .def("take_rows", &PyCommunicator::take_rows, py::arg("numbers"), py::arg("values"),
           "Writes the last sum_rows()' row numbers, int64, ascending, and its rows, to these "
           "addresses.")
      .def("reduce_scatter", &PyCommunicator::reduce_scatter, py::arg("input"), py::arg("output"),
           py::arg("share"), py::arg("dtype"), py::arg("library"), py::arg("takes_small") = false,
           "Collective: rank r gets the r-th `share` elements of the sum over the ranks of `size` "
           "times as many at the address `input`, at the address `output`. library: as sum() has, "
           "with scatter(input view, output view, dtype) in place of sum. Fails as sum() does.");
  m.def(
      "meeting_limits_s",
      [] {
        const Patience p = patience_at(MeetingPlace::process_group, Greeting().settings());
        return std::make_pair(p.warning_s, p.limit_s);
      },
      "How long the ranks of a process group wait for each other where they meet: until a warning, "
      "and in all; 0: for ever.");
  m.def(
      "time_limits",
      [] {
        py::dict limits;
        for (const TimeLimit& limit : kTimeLimits) limits[limit.name] = limit.seconds;
        return limits;
      },
      "The limits of base/time_limits.h, in seconds, by name.");
}

}  // namespace omnihvd
