// The arithmetic of the double of NCCL, by NCCL's numbers of types and operations.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace doubles {

size_t width_of(int type);  // bytes; 0: no such type
std::string reduced(const std::vector<std::string>& inputs, int type, int op);

}  // namespace doubles
