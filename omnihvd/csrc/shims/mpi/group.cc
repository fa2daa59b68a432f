#include "shims/mpi/group.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "shims/mpi/exchange.h"
#include "shims/mpi/library.h"
#include "shims/mpi/roll_call.h"
#include "shims/mpi/world.h"
#include "sums/agreement.h"
#include "sums/coded_buffer.h"

namespace omnihvd {
namespace {

std::mutex mutex;  // guards live()
std::set<MpiGroup*>& live() {
  static auto& groups = *new std::set<MpiGroup*>;  // outlives all static destructors
  return groups;
}

std::string& those_left_behind() {
  static auto& what = *new std::string;
  return what;
}

std::atomic<double> limit_of_end{0};

std::string sum_text(const MpiReduction& r) {
  return std::to_string(r.count) + " " +
         (r.codecs.empty() ? name_of(r.dtype) : "int32:" + r.codecs);
}

}  // namespace

int MpiGroup::keyval() {
  static const int created = [] {
    int key = MPI_KEYVAL_INVALID;
    check_mpi(PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &on_comm_free, &key, nullptr),
              "MPI_Comm_create_keyval");
    return key;
  }();
  return created;
}

MpiGroup* MpiGroup::find(MPI_Comm comm) {
  void* group = nullptr;
  int found = 0;
  check_mpi(PMPI_Comm_get_attr(comm, keyval(), &group, &found), "MPI_Comm_get_attr");
  return found ? static_cast<MpiGroup*>(group) : nullptr;
}

MpiGroup& MpiGroup::of(MPI_Comm comm, Caller caller) {
  if (MpiGroup* group = find(comm)) return *group;
  auto* const group = new MpiGroup(comm, caller);
  check_mpi(PMPI_Comm_set_attr(comm, keyval(), group), "MPI_Comm_set_attr");
  const std::lock_guard<std::mutex> lock(mutex);
  live().insert(group);
  return *group;
}

int MpiGroup::on_comm_free(MPI_Comm, int, void* attribute, void*) {
  auto* const group = static_cast<MpiGroup*>(attribute);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (live().erase(group) == 0) return MPI_SUCCESS;  // left already: MPI is being finalized
  }
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

const std::string& MpiGroup::left_behind() { return those_left_behind(); }

double MpiGroup::limit_after_failure() { return limit_of_end; }

void MpiGroup::check() const {
  process_.check();
  if (!failure_.empty()) throw Error(failure_);
}

template <typename Work>
void MpiGroup::or_fail_for_good(Work work) {
  check();
  try {
    work();
  } catch (const Error& error) {
    failure_ = error.what();
    if (settings_) limit_of_end = settings_->timeout_s;
    own_.reset();  // the other ranks need not wait for this one
    throw;
  }
}

const char* MpiGroup::refusal(const MpiReduction& r, uint64_t bytes) {
  agreed_in_this_call_ = !settings_;
  if (!settings_) or_fail_for_good([&] { agree(r); });
  if (!settings_->enable) return "disabled";
  if (!r.codecs.empty() || may_be_coded(r)) return nullptr;
  return bytes < settings_->min_bytes ? "small" : nullptr;
}

// How long the others are waited for once they are known to run omnihvd.
Patience MpiGroup::patience(const Settings& s) const {
  const double limit = caller_ == Caller::horovod ? 60 : 600;
  return Patience{s.stall_warning_s, s.join_timeout_s.value_or(limit)}.within(s.timeout_s);
}

// Returns when all ranks are known to run omnihvd.
void MpiGroup::call_the_roll(const Settings& s) const {
  const std::optional<std::vector<int>> known = known_to_be_without(comm_);
  if (known) {
    if (known->empty()) return;
    throw Error(names_of(*known, comm_) +
                " runs without omnihvd, so that no rank can use it: preload libomnihvd_mpi.so on "
                "every rank (mpirun -x LD_PRELOAD), of the same version");
  }
  const double limit = caller_ == Caller::horovod ? 10 : 600;
  const Patience patience = Patience{3, s.join_timeout_s.value_or(limit)}.within(s.timeout_s);
  const std::vector<int> missing = missing_ranks(comm_, patience);
  if (missing.empty()) return;
  std::ostringstream text;
  text
      << names_of(missing, comm_)
      << " did not come to the first allreduce on a communicator within " << patience.limit_s
      << " s. It runs without omnihvd (import omnihvd on every rank before "
      << "hvd.init(); OMNIHVD_ENABLE=0, a build without MPI and another version count as without), "
      << "or it was stopped or has ended: its own output says why. OMNIHVD_JOIN_TIMEOUT allows "
      << "more time";
  if (caller_ == Caller::horovod) those_left_behind() = names_of(missing, comm_);
  throw Error(text.str());
}

void MpiGroup::agree(const MpiReduction& r) {
  const Greeting greeting;
  call_the_roll(greeting.settings());
  MpiExchange exchange(comm_, patience(greeting.settings()));
  Agreement agreed = greeting.read(exchange.allgather(greeting.with(sum_text(r))), exchange.rank());
  hosts_ = std::move(agreed.hosts);
  if (agreed.settings.enable) check_same(agreed.words);
  settings_ = agreed.settings;
}

// All ranks must be in the same sum when they do what needs all of them. One that leaves it to MPI,
// because it is smaller there, would wait there for ever.
void MpiGroup::check_same(const std::vector<std::string>& sums) const {
  for (size_t rank = 1; rank < sums.size(); ++rank)
    if (sums[rank] != sums[0])
      throw Error("the ranks disagree about an allreduce: rank " + std::to_string(rank) + " (" +
                  hosts_[rank] + ") sums " + sums[rank] + ", rank 0 (" + hosts_[0] + ") sums " +
                  sums[0]);
}

Way MpiGroup::allreduce(const MpiReduction& r) {
  Way way = Way::stream;
  or_fail_for_good([&] {
    if (!ways_) {
      if (!agreed_in_this_call_)
        check_same(MpiExchange(comm_, patience(*settings_)).allgather(sum_text(r)));
      ways_.emplace(*settings_);
    }
    if (!r.codecs.empty()) {
      way = sum_coded(r);
      return;
    }
    if (may_be_coded(r)) {
      way = sum(r, r.in == MPI_IN_PLACE ? r.out : r.in, r.out).way;
      return;
    }
    MpiLibrary library(comm_, r);
    way = ways_->allreduce(r.in == MPI_IN_PLACE ? r.out : r.in, r.out, uint64_t(r.count), r.dtype,
                           library, [&](const void* in, void* out) { return sum(r, in, out); });
  });
  return way;
}

Way MpiGroup::sum_coded(const MpiReduction& r) {
  if (r.in != MPI_IN_PLACE) std::memcpy(r.out, r.in, size_t(r.count) * sizeof(float));
  Way way = Way::stream;
  CodedBuffer tensors(r.out, uint64_t(r.count) * sizeof(float));
  tensors.sum(
      coded_sums_++, settings_->deterministic, [&](void* data, uint64_t count, const Codec& codec) {
        const MpiReduction floats{MPI_IN_PLACE, data, int(count), MPI_FLOAT, MPI_SUM, DType::f32};
        way = sum(floats, data, data, codec).way;
      });
  return way;
}

Ways::SumMade MpiGroup::sum(const MpiReduction& r, const void* in, void* out, const Codec& codec) {
  if (!own_) {
    MpiExchange exchange(comm_, patience(*settings_));
    own_.emplace(exchange, *settings_, std::exchange(hosts_, {}));
  }
  return own_->allreduce(in, out, uint64_t(r.count), r.dtype, codec);
}

MpiGroup::Elsewhere::Elsewhere(MPI_Comm comm, uint64_t bytes, const char* reason) {
  const MpiGroup* const group = comm == MPI_COMM_NULL ? nullptr : find(comm);
  if (!group || !group->own_) return;
  group_ = group->own_->group();
  if (!group_) return;
  group_->set_elsewhere("which is in an MPI_Allreduce of " + std::to_string(bytes) +
                        " bytes, left to MPI (" + reason + ")");
}

MpiGroup::Elsewhere::~Elsewhere() {
  if (group_) group_->set_elsewhere("");
}

}  // namespace omnihvd
