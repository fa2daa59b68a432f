// Bootstrap of a communicator's ranks: how long they wait for each other, and what they exchange
// before their first sum.
#pragma once

#include <string>
#include <vector>

#include "base/awake_clock.h"
#include "engine/session.h"

namespace omnihvd {

// Where ranks wait for each other before they are connected. meeting.cc has the time-outs.
enum class MeetingPlace {
  mpi_init,              // which ranks preload the library; asked as MPI_Init returns
  roll_of_horovod,       // which ranks run omnihvd; at Horovod's first sum over MPI
  roll_of_program,       // the same for another program: ranks may come much later
  first_sum_of_horovod,  // all ranks are known to run omnihvd
  first_sum_of_program,
  process_group,  // torch.distributed makes it; ranks may still import much
  check,          // omnihvd check --job
};

struct Patience {  // in seconds; 0: none
  double warning_s = 0, limit_s = 0;
};
Patience patience_at(MeetingPlace place, const Settings& settings);

// Measures the time for which this process was awake. Call it repeatedly.
class Waiting {
 public:
  Waiting(const Patience& patience, double warn_again_s)
      : patience_(patience), warn_again_s_(warn_again_s), next_warning_s_(patience.warning_s) {}

  double seconds() const { return awake_.seconds(); }
  bool over() const { return patience_.limit_s > 0 && seconds() >= patience_.limit_s; }
  bool warn() {  // true when it is time for a warning
    if (patience_.warning_s <= 0 || seconds() < next_warning_s_) return false;
    next_warning_s_ = warn_again_s_ > 0 ? seconds() + warn_again_s_ : 1e18;
    return true;
  }
  void pause() const { pause_after(seconds()); }

  // The ranks of a running program come within microseconds, but a late rank may take long.
  static void pause_after(double waited_s);

 private:
  const Patience patience_;
  const double warn_again_s_;
  double next_warning_s_;
  mutable AwakeTimer awake_;
};

struct Agreement {
  Settings settings;               // this process's own; equal on all ranks where they must be
  std::vector<std::string> hosts;  // of each rank
  std::vector<std::string> words;  // what each rank added to its greeting
};

// A process's message to the other ranks in the bootstrap, over any backend.
class Greeting {
 public:
  Greeting();  // reads the settings

  // This process's settings. Wrong ones are replaced by the defaults; the greeting tells the other
  // ranks.
  const Settings& settings() const { return settings_; }
  std::string with(const std::string& word) const;

  // Reads the greetings of all ranks. Throws Error on all ranks, naming the rank, if one has
  // another version or wrong settings. Rank 0 warns once about settings in which ranks differ.
  Agreement read(const std::vector<std::string>& greetings, int own_rank) const;

 private:
  Settings settings_;
  std::string problem_;
};

// Throws Error, which names both sides, unless all ranks make the same sum. sums: each rank's sum
// in words.
void check_same(const std::vector<std::string>& sums, const std::vector<std::string>& hosts);

}  // namespace omnihvd
