// An exchange over a Python function.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "session/session.h"

namespace omnihvd {

// Calls into Python from a thread without its lock; what is raised there becomes an Error of the
// same words.
template <typename Call>
auto in_python(Call call) {
  pybind11::gil_scoped_acquire gil;
  try {
    return call();
  } catch (pybind11::error_already_set& error) {
    throw Error(pybind11::str(error.value()));
  }
}

// allgather(bytes) -> list of bytes.
class PyExchange : public Exchange {
 public:
  PyExchange(int rank, int size, pybind11::object allgather)
      : rank_(rank), size_(size), allgather_(std::move(allgather)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> allgather(const std::string& mine) override {
    return in_python([&] {
      std::vector<std::string> all;
      for (pybind11::handle item : allgather_(pybind11::bytes(mine)))
        all.push_back(item.cast<pybind11::bytes>());
      return all;
    });
  }

 private:
  int rank_, size_;
  pybind11::object allgather_;
};

}  // namespace omnihvd
