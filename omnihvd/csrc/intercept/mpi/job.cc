// The MPI functions for `omnihvd check --job`, which needs no Python package for MPI. They return 0
// on success; otherwise `error` holds the reason.
#include <mpi.h>

#include <cstdio>
#include <string>

#include "base/error.h"
#include "intercept/mpi/call.h"

namespace omnihvd {
namespace {

constexpr size_t kErrorBytes = 1024;  // of the caller's buffer

template <typename Work>
int or_tell(char* error, Work work) noexcept {
  try {
    work();
    return 0;
  } catch (const std::exception& why) {
    std::snprintf(error, kErrorBytes, "%s", why.what());
    return 1;
  }
}

}  // namespace
}  // namespace omnihvd

OMNIHVD_EXPORT int omnihvd_job_begin(int* rank, int* size, char* error) {
  return omnihvd::or_tell(error, [=] {
    int begun = 0, provided = 0;
    omnihvd::check_mpi(PMPI_Initialized(&begun), "MPI_Initialized");
    if (!begun)
      omnihvd::check_mpi(PMPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided),
                         "MPI_Init");
    omnihvd::check_mpi(PMPI_Comm_rank(MPI_COMM_WORLD, rank), "MPI_Comm_rank");
    omnihvd::check_mpi(PMPI_Comm_size(MPI_COMM_WORLD, size), "MPI_Comm_size");
  });
}

// Collective. Calls `take` with each rank's bytes, in rank order; they live during the call.
OMNIHVD_EXPORT int omnihvd_job_allgather(const char* mine, size_t size,
                                         void (*take)(const char* bytes, size_t size),
                                         char* error) {
  return omnihvd::or_tell(error, [=] {
    omnihvd::MpiExchange exchange(MPI_COMM_WORLD, omnihvd::Caller::program);
    exchange.set_patience(omnihvd::patience_at(omnihvd::MeetingPlace::check, {}));
    for (const std::string& part : exchange.allgather(std::string(mine, size)))
      take(part.data(), part.size());
  });
}

OMNIHVD_EXPORT void omnihvd_job_end() { PMPI_Finalize(); }
