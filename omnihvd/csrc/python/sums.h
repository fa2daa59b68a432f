// Code that the bindings of sums share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/session.h"
#include "engine/while_waiting.h"
#include "numeric/codec.h"
#include "numeric/dtype.h"
#include "python/signals.h"

namespace omnihvd {

// Calls into Python from a thread without the GIL; an exception there becomes an Error with the
// same text.
template <typename Call>
auto in_python(Call call) {
  pybind11::gil_scoped_acquire gil;
  try {
    return call();
  } catch (pybind11::error_already_set& error) {
    Signals::keep_if_it_ends_the_program(error);
    throw Error(pybind11::str(error.value()));
  }
}

// An out-of-band allgather by a Python function: allgather(bytes) -> list of bytes; None if unused.
class PyExchange : public Exchange {
 public:
  PyExchange(int rank, int size, pybind11::object allgather)
      : Exchange(rank, size), allgather_(std::move(allgather)) {}
  std::vector<std::string> allgather(const std::string& mine) override {
    return in_python([&] {
      std::vector<std::string> all;
      for (pybind11::handle item : allgather_(pybind11::bytes(mine)))
        all.push_back(item.cast<pybind11::bytes>());
      return all;
    });
  }

 private:
  const pybind11::object allgather_;
};

// Element types by their names in NumPy and PyTorch.
inline DType dtype_named(const std::string& name) {
  for (int i = 0; i < kDTypes; ++i)
    if (name == name_of(DType(i))) return DType(i);
  throw pybind11::type_error("omnihvd does not sum dtype " + name);
}

inline DType dtype_of(const pybind11::array& array, const std::string& name) {
  const std::string wanted = name.empty() ? std::string(pybind11::str(array.dtype())) : name;
  const DType dtype = dtype_named(wanted);
  if (size_t(array.itemsize()) != size_of(dtype))
    throw pybind11::type_error("this array's elements are not of " + wanted);
  return dtype;
}

inline void interrupt(Group& group, const std::string& why) {
  group.fail("rank " + std::to_string(group.rank()) + ": " + why);
}

// Runs `sum` without the GIL. If a handler of a signal raises meanwhile, calls interrupt(why),
// which must make the sum fail on all ranks.
template <typename Interrupt, typename Sum>
void interruptible(Interrupt interrupt, Sum sum) {
  Signals signals;
  signals.during([&] {
    const auto look = [&] {
      if (const std::string why = signals.run(); !why.empty()) interrupt(why);
    };
    const WhileWaiting waiting(look, Signals::kEvery);
    sum();
  });
}

// For any Group with such an allreduce.
template <typename Group>
uint64_t allreduce(Group& group, pybind11::array in, pybind11::array out, const std::string& dtype,
                   const Codec& codec) {
  if (!(in.flags() & pybind11::array::c_style) || !(out.flags() & pybind11::array::c_style) ||
      in.nbytes() != out.nbytes())
    throw pybind11::value_error("arrays must be contiguous and of equal size");
  const DType type = dtype_of(in, dtype);
  void* target = out.mutable_data();
  const void* source = in.data();
  const uint64_t count = uint64_t(in.size());
  uint64_t united = 0;
  interruptible([&](const std::string& why) { interrupt(group, why); },
                [&] { united = group.allreduce(source, target, count, type, codec); });
  return united;
}

// The same for reduce-scatters: out has the elements of this rank.
template <typename Group>
uint64_t reduce_scatter(Group& group, pybind11::array in, pybind11::array out,
                        const std::vector<uint64_t>& shares, const std::string& dtype,
                        const Codec& codec) {
  const auto rank = size_t(group.rank());
  const uint64_t all = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
  if (!(in.flags() & pybind11::array::c_style) || !(out.flags() & pybind11::array::c_style) ||
      in.itemsize() != out.itemsize() || uint64_t(in.size()) != all || rank >= shares.size() ||
      uint64_t(out.size()) != shares[rank])
    throw pybind11::value_error(
        "arrays must be contiguous and have as many elements as shares says");
  const DType type = dtype_of(in, dtype);
  void* target = out.mutable_data();
  const void* source = in.data();
  uint64_t united = 0;
  interruptible([&](const std::string& why) { interrupt(group, why); },
                [&] { united = group.reduce_scatter(source, target, shares, type, codec); });
  return united;
}

}  // namespace omnihvd
