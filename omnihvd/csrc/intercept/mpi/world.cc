#include "intercept/mpi/world.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/settings.h"
#include "intercept/mpi/call.h"
#include "intercept/mpi/roll_call.h"

namespace omnihvd {
namespace {

enum class Has : char { yes, no, unknown };
std::vector<Has>& ranks() {  // in MPI_COMM_WORLD; empty: unknown
  static auto& all = *new std::vector<Has>;
  return all;
}

// The program has no receives yet that could catch the messages.
void call_the_roll() noexcept {
  const Settings settings = set_up_log();
  try {
    int rank = 0, size = 0;
    check_mpi(PMPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check_mpi(PMPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    const auto missing =
        missing_ranks(MPI_COMM_WORLD, patience_at(MeetingPlace::mpi_init, settings));
    const bool complete = missing.size() < kMostMissing && missing != std::vector<int>{0};
    std::vector<Has> found(size, complete || missing.empty() ? Has::yes : Has::unknown);
    found[rank] = Has::yes;
    for (const int without : missing) found[without] = Has::no;
    ranks() = std::move(found);
  } catch (const Error& error) {
    log(LogLevel::warning, "cannot find out which ranks run omnihvd: ", error.what());
  }
}

int after_init(int code) {
  if (code == MPI_SUCCESS) call_the_roll();
  return code;
}

}  // namespace

std::optional<std::vector<int>> known_to_be_without(MPI_Comm comm) {
  if (ranks().empty()) return std::nullopt;
  int size = 0;
  check_mpi(PMPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int> without;
  bool all_known = true;
  const std::vector<int> there = ranks_in_world(comm);
  for (int rank = 0; rank < size; ++rank) {
    const Has has = there[rank] == MPI_UNDEFINED ? Has::unknown : ranks()[there[rank]];
    if (has == Has::no) without.push_back(rank);
    all_known &= has != Has::unknown;
  }
  if (without.empty() && !all_known) return std::nullopt;
  return without;
}

Settings set_up_log() {
  int rank = -1;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  set_log_rank(rank);
  Settings settings;
  try {
    settings = settings_from_environment();
    set_log_level(settings.log);
  } catch (const Error&) {
  }
  return settings;
}

}  // namespace omnihvd

OMNIHVD_EXPORT int MPI_Init(int* argc, char*** argv) {
  return omnihvd::after_init(PMPI_Init(argc, argv));
}

OMNIHVD_EXPORT int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  return omnihvd::after_init(PMPI_Init_thread(argc, argv, required, provided));
}

// A program in Fortran calls these, and MPI's library then makes the calls above for none.
extern "C" void pmpi_init_(int* code) __attribute__((weak));
extern "C" void pmpi_init_thread_(int* required, int* provided, int* code) __attribute__((weak));

OMNIHVD_EXPORT void mpi_init_(int* code) {
  pmpi_init_(code);
  omnihvd::after_init(*code);
}

OMNIHVD_EXPORT void mpi_init_thread_(int* required, int* provided, int* code) {
  pmpi_init_thread_(required, provided, code);
  omnihvd::after_init(*code);
}
