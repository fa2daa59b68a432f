// Element types by their names in NumPy and PyTorch.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "numeric/dtype.h"

namespace omnihvd {

inline DType dtype_named(const std::string& name) {
  for (int i = 0; i < kDTypes; ++i)
    if (name == name_of(DType(i))) return DType(i);
  throw pybind11::type_error("omnihvd does not sum dtype " + name);
}

}  // namespace omnihvd
