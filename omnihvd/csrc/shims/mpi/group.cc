#include "shims/mpi/group.h"

#include <unistd.h>

#include <climits>
#include <mutex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "shims/host_grid.h"
#include "shims/mpi/exchange.h"
#include "shims/mpi/library.h"

namespace omnihvd {
namespace {

std::mutex mutex;  // guards live()
std::set<MpiGroup*>& live() {
  static auto& groups = *new std::set<MpiGroup*>;  // outlives all static destructors
  return groups;
}

std::string host_name(const Settings& settings) {
  if (!settings.host_id.empty()) return settings.host_id;
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// What a rank tells the others before all else: "ok" and its settings, as far as all must agree,
// and its host; or, when its settings are wrong, what is wrong.
constexpr char kGreeting[] = "omnihvd-mpi-1";

std::string greet(const Settings& s) {
  std::ostringstream text;
  text << kGreeting << " ok " << s.enable << ' ' << s.min_bytes << ' ' << s.block_size << ' '
       << static_cast<int>(s.hierarchy) << ' ' << static_cast<int>(s.way) << ' ' << s.deterministic
       << ' ' << host_name(s);
  return text.str();
}

// Returns the host.
std::string read_greeting(const std::string& greeting, int rank, Settings* s) {
  std::istringstream text(greeting);
  std::string version, state, rest;
  int hierarchy = 0, way = 0;
  text >> version >> state;
  if (version == kGreeting && state == "error") {
    std::getline(text >> std::ws, rest);
    throw Error("rank " + std::to_string(rank) + ": " + rest);
  }
  text >> s->enable >> s->min_bytes >> s->block_size >> hierarchy >> way >> s->deterministic >>
      std::ws;
  s->hierarchy = static_cast<Hierarchy>(hierarchy);
  s->way = static_cast<WaySetting>(way);
  std::getline(text, rest);
  if (version != kGreeting || text.fail())
    throw Error("rank " + std::to_string(rank) +
                " uses another version of omnihvd: install the same one on all hosts");
  return rest;
}

}  // namespace

MpiGroup& MpiGroup::of(MPI_Comm comm) {
  static const int keyval = [] {
    int created = MPI_KEYVAL_INVALID;
    check_mpi(PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &on_comm_free, &created, nullptr),
              "MPI_Comm_create_keyval");
    return created;
  }();
  void* group = nullptr;
  int found = 0;
  check_mpi(PMPI_Comm_get_attr(comm, keyval, &group, &found), "MPI_Comm_get_attr");
  if (!found) {
    group = new MpiGroup(comm);
    check_mpi(PMPI_Comm_set_attr(comm, keyval, group), "MPI_Comm_set_attr");
    const std::lock_guard<std::mutex> lock(mutex);
    live().insert(static_cast<MpiGroup*>(group));
  }
  return *static_cast<MpiGroup*>(group);
}

int MpiGroup::on_comm_free(MPI_Comm, int, void* attribute, void*) {
  auto* const group = static_cast<MpiGroup*>(attribute);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (live().erase(group) == 0) return MPI_SUCCESS;  // left already: MPI is being finalized
  }
  if (group->grid_) group->grid_->free();
  delete group;
  return MPI_SUCCESS;
}

void MpiGroup::leave_all() {
  std::set<MpiGroup*> groups;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    groups.swap(live());
  }
  for (MpiGroup* group : groups) delete group;  // MPI_Finalize frees the communicators
}

template <typename Work>
void MpiGroup::or_fail_for_good(Work work) {
  if (!failure_.empty()) throw Error(failure_);
  try {
    work();
  } catch (const Error& error) {
    failure_ = error.what();
    group_.reset();  // the other ranks need not wait for this one
    throw;
  }
}

const char* MpiGroup::refusal(uint64_t bytes) {
  if (!settings_) or_fail_for_good([this] { agree(); });
  if (!settings_->enable) return "disabled";
  return bytes < settings_->min_bytes ? "small" : nullptr;
}

void MpiGroup::agree() {
  Settings mine;
  std::string greeting;
  try {
    mine = settings_from_environment();
    greeting = greet(mine);
  } catch (const Error& error) {  // the others must learn it, or they would wait for this rank
    greeting = std::string(kGreeting) + " error " + error.what();
  }
  MpiExchange exchange(comm_, mine);
  const std::vector<std::string> greetings = exchange.allgather(greeting);
  Settings others;  // only checked to be readable
  for (int rank = 0; rank < exchange.size(); ++rank)
    hosts_.push_back(read_greeting(greetings[rank], rank, rank == 0 ? &mine : &others));
  settings_ = mine;
}

Way MpiGroup::allreduce(const MpiReduction& r) {
  Way way = Way::stream;
  or_fail_for_good([&] {
    if (!ways_) {
      choose_levels();
      ways_.emplace(*settings_);
    }
    MpiLibrary library(comm_, r);
    way = ways_->allreduce(r.in == MPI_IN_PLACE ? r.out : r.in, r.out, uint64_t(r.count), r.dtype,
                           library, [&](const void* in, void* out) { return stream(r, in, out); });
  });
  return way;
}

void MpiGroup::choose_levels() {
  const Hierarchy wanted = settings_->hierarchy;
  if (wanted != Hierarchy::off) {
    const char* const obstacle = grid_obstacle(hosts_);
    if (obstacle == nullptr) {
      grid_.emplace(comm_, hosts_);
    } else {
      int rank = 0;
      check_mpi(PMPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
      static std::once_flag once;
      if (rank == 0)
        std::call_once(once, [&] {
          log(wanted == Hierarchy::on ? LogLevel::warning : LogLevel::info, "the ", hosts_.size(),
              " ranks of a communicator stream without reducing inside the hosts first: ",
              obstacle);
        });
    }
  }
  hosts_.clear();
}

uint64_t MpiGroup::stream(const MpiReduction& r, const void* in, void* out) {
  if (!group_) {
    MpiExchange exchange(grid_ ? grid_->across() : comm_, *settings_);
    group_ = process_engine()->join(exchange);
  }
  if (!grid_) return group_->allreduce(in, out, uint64_t(r.count), r.dtype);
  return grid_->allreduce(r, settings_->block_size,
                          [&](const void* part, void* sum, uint64_t count) {
                            return group_->allreduce(part, sum, count, r.dtype);
                          });
}

}  // namespace omnihvd
