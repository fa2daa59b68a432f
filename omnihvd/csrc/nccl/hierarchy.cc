#include "nccl/hierarchy.h"

#include <thread>

namespace omnihvd {

std::string NcclGrid::make(NcclExchange& exchange) {
  std::string why = host_.make(exchange, place_.inside);
  if (why.empty()) why = between_.make(exchange, place_.across);
  return why;
}

NcclResult NcclGrid::async_error() {
  const NcclResult error = host_.async_error();
  return error == NcclResult::success ? between_.async_error() : error;
}

void NcclGrid::destroy() {
  between_.destroy();
  host_.destroy();
}

// Aborts both at once: each may keep the device from finishing the other's work.
void NcclGrid::abort() {
  std::thread other([this] { between_.abort(); });
  host_.abort();
  other.join();
}

}  // namespace omnihvd
