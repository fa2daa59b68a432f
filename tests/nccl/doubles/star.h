// How the ranks of a communicator reach each other in the double of NCCL: all send to rank 0,
// which combines, and sends to all.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace doubles {

using Bytes = std::string;

class Star {
 public:
  // Returns once all ranks are there; dies after a minute. Rank 0 makes the socket.
  Star(const std::string& path, int rank, int size);
  ~Star();

  // One collective. `what` must be the same on all ranks: else it dies, as ranks disagree on what
  // they do. combine: of all ranks' bytes, on rank 0, what each of them gets. False: a rank is
  // gone, or abort() was called.
  using Combine = std::function<std::vector<Bytes>(const std::vector<Bytes>&)>;
  bool exchange(const std::string& what, const Bytes& mine, const Combine& combine, Bytes* result);

  void abort();  // any thread

 private:
  const int rank_, size_;
  std::vector<int> peers_;  // rank 0: sockets by rank; else the one to rank 0
};

}  // namespace doubles
