// What the bindings of sums have in common.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "protocol/dtype.h"
#include "session/session.h"

namespace omnihvd {

// An exchange over a Python function: allgather(bytes) -> list of bytes.
class PyExchange : public Exchange {
 public:
  PyExchange(int rank, int size, pybind11::function allgather)
      : rank_(rank), size_(size), allgather_(std::move(allgather)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> allgather(const std::string& mine) override {
    pybind11::gil_scoped_acquire gil;
    std::vector<std::string> all;
    for (pybind11::handle item : allgather_(pybind11::bytes(mine)))
      all.push_back(item.cast<pybind11::bytes>());
    return all;
  }

 private:
  int rank_, size_;
  pybind11::function allgather_;
};

inline DType dtype_of(const pybind11::array& array, const std::string& name) {
  const std::string wanted = name.empty() ? std::string(pybind11::str(array.dtype())) : name;
  for (int i = 0; i < kDTypes; ++i)
    if (wanted == name_of(DType(i)) && size_t(array.itemsize()) == size_of(DType(i)))
      return DType(i);
  throw pybind11::type_error("no sum of dtype " + wanted);
}

// Of whatever has such an allreduce.
template <typename Group>
uint64_t allreduce(Group& group, pybind11::array in, pybind11::array out,
                   const std::string& dtype) {
  if (!(in.flags() & pybind11::array::c_style) || !(out.flags() & pybind11::array::c_style) ||
      in.nbytes() != out.nbytes())
    throw pybind11::value_error("arrays must be contiguous and of equal size");
  const DType type = dtype_of(in, dtype);
  void* target = out.mutable_data();
  const void* source = in.data();
  const uint64_t count = uint64_t(in.size());
  pybind11::gil_scoped_release release;
  return group.allreduce(source, target, count, type);
}

}  // namespace omnihvd
