// omnihvd._engine.session.AgreedGroup: sums in all ways, over a library written in Python, as
// torch.distributed's Gloo is for it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "python/sums.h"
#include "sums/agreed_group.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// Over the methods sum(view, dtype), unite(view) and tell(view) of an object, in place on views of
// memory.
class OverMethods : public Library {
 public:
  OverMethods(const Exchange& exchange, DType dtype, py::handle object)
      : exchange_(exchange), dtype_(dtype), object_(object) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  void sum(const void* in, void* out, uint64_t count) override {
    const size_t bytes = count * size_of(dtype_);
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
};

class PyAgreedGroup {
 public:
  PyAgreedGroup(int rank, int size, double timeout_s)
      : rank_(rank), size_(size), group_(timeout_s) {}

  void agree(py::object allgather) {
    PyExchange exchange(rank_, size_, std::move(allgather));
    py::gil_scoped_release release;
    group_.refusal(exchange, 0);
    agreed_ = true;
  }

  const char* refusal(uint64_t bytes) {
    if (!agreed_) throw Error("the ranks have not agreed yet");
    PyExchange none(rank_, size_, py::none());
    return group_.refusal(none, bytes);
  }

  void allreduce(uintptr_t data, uint64_t count, const std::string& name, py::object object,
                 const Codec& codec) {
    const DType dtype = dtype_named(name);
    PyExchange exchange(rank_, size_, object.attr("allgather"));
    OverMethods library(exchange, dtype, object);
    py::gil_scoped_release release;
    const auto begun = std::chrono::steady_clock::now();
    void* const at = reinterpret_cast<void*>(data);
    const Way way = codec ? group_.allreduce(exchange, at, count, codec)
                          : group_.allreduce(exchange, library, at, count, dtype);
    count_way(way, count * size_of(dtype), begun);
  }

 private:
  const int rank_, size_;
  bool agreed_ = false;
  AgreedGroup group_;
};

}  // namespace

void bind_agreed_group(py::module_ m) {
  std::vector<std::string> dtypes;
  for (const DTypeInfo& dtype : kDTypeInfo) dtypes.push_back(dtype.name);
  m.attr("dtypes") = dtypes;
  py::class_<PyAgreedGroup>(m, "AgreedGroup",
                            "The engine's group of a communicator. One thread at a time.")
      .def(py::init<int, int, double>(), py::arg("rank"), py::arg("size"), py::arg("timeout_s"),
           "timeout_s: of a sum, unless OMNIHVD_TIMEOUT has one; 0: none.")
      .def(
          "agree", &PyAgreedGroup::agree, py::arg("allgather"),
          "Collective, once. allgather(bytes) -> every rank's bytes. EngineError, on all ranks, if "
          "the settings of one are wrong.")
      .def("refusal", &PyAgreedGroup::refusal, py::arg("bytes"),
           "Why a tensor of this size is left to the library, on all ranks alike, or None.")
      .def("allreduce", &PyAgreedGroup::allreduce, py::arg("data"), py::arg("count"),
           py::arg("dtype"), py::arg("library"), py::arg("codec") = Codec(),
           "Collective: the sum over the ranks, in place, of `count` elements at the address "
           "`data`. library: an object with allgather(bytes), and with sum(view, dtype), "
           "unite(view) (bitwise or) and tell(view) (rank 0's, to all), in place on views of "
           "memory. codec: of float32. EngineError, and then at each later call. Other Python "
           "threads run meanwhile.");
}

}  // namespace omnihvd
