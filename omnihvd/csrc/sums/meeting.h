// The first meeting of a communicator's ranks: how long they wait for each other, and what they
// must know before their first sum.
#pragma once

#include <string>
#include <vector>

#include "base/awake_clock.h"
#include "session/session.h"

namespace omnihvd {

// Where ranks wait for each other that are not connected. meeting.cc has how long.
enum class MeetingPlace {
  mpi_init,              // who has the shim preloaded, asked as MPI_Init returns
  roll_of_horovod,       // who runs omnihvd, at Horovod's first sum on an MPI communicator
  roll_of_program,       // the same at another program's, whose ranks come when they like
  first_sum_of_horovod,  // where all are known to run it
  first_sum_of_program,
  process_group,  // torch.distributed's, when it is made; ranks may have to import much
  check,          // omnihvd check --job
};

struct Patience {  // in seconds; 0: none
  double warning_s = 0, limit_s = 0;
};
Patience patience_at(MeetingPlace place, const Settings& settings);

// Counts the time in which this process was awake: look at it again and again.
class Waiting {
 public:
  Waiting(const Patience& patience, double warn_again_s)
      : patience_(patience), warn_again_s_(warn_again_s), next_warning_s_(patience.warning_s) {}

  double seconds() const { return awake_.seconds(); }
  bool over() const { return patience_.limit_s > 0 && seconds() >= patience_.limit_s; }
  bool warn();  // true when it is time for a warning
  void pause() const { pause_after(seconds()); }

  // The ranks of a running program come within microseconds; who is late may be long.
  static void pause_after(double waited_s);

 private:
  const Patience patience_;
  const double warn_again_s_;
  double next_warning_s_;
  mutable AwakeTimer awake_;
};

struct Agreement {
  Settings settings;               // this process's own, and the same where all must agree
  std::vector<std::string> hosts;  // of each rank
  std::vector<std::string> words;  // what each has added to its greeting
};

// What this process tells the other ranks, however it reaches them.
class Greeting {
 public:
  Greeting();  // reads the settings

  // Its own: the defaults where they are wrong, which the others are told.
  const Settings& settings() const { return settings_; }
  std::string with(const std::string& word) const;

  // Of each rank. Throws Error on all ranks if one is of another version, or its settings are
  // wrong, with the rank. Rank 0 warns, once, of settings in which ranks differ.
  Agreement read(const std::vector<std::string>& greetings, int own_rank) const;

 private:
  Settings settings_;
  std::string problem_;
};

// Throws Error, with both sides, unless all ranks make the same sum. sums: in words, of each rank.
void check_same(const std::vector<std::string>& sums, const std::vector<std::string>& hosts);

}  // namespace omnihvd
