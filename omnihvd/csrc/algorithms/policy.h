// The selector: finds the fastest algorithm from measured times. Rank 0 keeps it, and all ranks
// follow rank 0's decisions.
//
// Sums fall into bins by their size and by the fraction of blocks that is non-zero on any
// rank (densities.h). In each bin the selector uses the fastest algorithm, and tries others now and
// then. For an algorithm that has not been tried in a bin, its times in other bins give bounds,
// because times grow with bytes, but not faster than bytes. If a tensor of S0 bytes, with U0 bytes
// in the union of blocks, took T0 seconds, then for a tensor of S and U bytes:
//
//   T0 x min(1, S/S0, U/U0)  <=  T  <=  T0 x max(1, S/S0, U/U0)
//
// A bin's first sums use the algorithm that these bounds make the likely fastest. The slower an
// algorithm is expected to be, or was, the later it is tried, and tried again: in the long run
// trials cost 2% of the time.
//
// If nothing is known, large tensors begin with omnihvd's algorithm, which tells the density, and
// small ones with the library's sum, because omnihvd's must first connect the ranks. They connect
// for small ones once sums have taken twice as long as that takes.
//
// Where streaming waits for the link, its messages are tried with the lossless codec, which takes
// processor time, and the library is tried late: it needs as many bytes at the least.
//
// Pure: times are arguments. A sample is one sum's seconds per byte; a score, the lower median of
// the last five of an algorithm in a bin.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "algorithms/densities.h"
#include "base/way.h"

namespace omnihvd {

struct Bin {
  int size = 0;     // size_class()
  int density = 0;  // density_class(), or kUnknown
  bool operator<(const Bin& o) const {
    return size != o.size ? size < o.size : density < o.density;
  }
};

// A selector decision for a bin: `after` sums by `now`, then one by `trial`; then rank 0 makes a
// new one.
struct Order {
  Way now = Way::original;
  Way trial = Way::original;
  uint16_t after = 0;
};

// Ranks connect for a sum of so many bytes, whatever came before it.
constexpr uint64_t kConnectsAtOnce = 16'000'000;

// Seconds in which ranks connect: measured where 2 to 4 share 2 cores.
constexpr double kConnectHosts = 0.1, kConnectHere = 0.005;

class Policy {
 public:
  // unites: whether sums can be made on the union of blocks. connect_s: what it takes to connect
  // the ranks.
  explicit Policy(bool unites = true, double connect_s = kConnectHosts)
      : unites_(unites), connect_s_(connect_s) {}

  // Whether this was an algorithm's first sum, and too short to be measured: ranks connect in it.
  bool connects(Way way, double seconds);
  // From now on ranks connect for sums of all sizes: the caller has waited long enough.
  void connect_at_once() { at_once_ = true; }
  // Records a sum of `bytes`. united: how many of these were in the union of blocks, if known.
  void measured(Bin bin, Way way, uint64_t bytes, std::optional<uint64_t> united, double seconds);
  // Records the time that the library alone took for a sum of so many bytes.
  void library_took(uint64_t bytes, double seconds);
  Order order(Bin bin, uint64_t bytes);

 private:
  struct Samples {
    std::vector<double> last;  // seconds per byte
    void add(double value);
    double score() const;
  };
  struct Trials {
    std::array<Samples, kWays> ways;
    std::array<uint64_t, kWays> due{};  // when it is tried again; 0: not planned
    uint64_t now = 1;                   // sums decided so far
    Way best = Way::automatic;          // among those tried; automatic: none
    double bytes = 0, united = 0;       // of the last sum
  };
  struct Bounds {  // in seconds; most 0: nothing is known
    double least = 0, most = 0;
    void add(double took, double bytes, double united);
    double likely() const;
  };
  static double streamed(const Trials& trials);  // seconds of a sum; 0: not measured
  static bool link_bound(const Trials& trials);  // whether streaming waits for the link
  // Whether an algorithm can be the fastest in a bin at all.
  bool allowed(Bin bin, const Trials& trials, Way way) const;
  Bounds bounds(const Trials& trials, Way way) const;
  double expected(const Trials& trials, Way way) const;
  Way first(Bin bin, const Trials& trials) const;
  // Seconds of sums until the ranks may connect for small ones; 0: they may, or have connected.
  double patience() const;
  uint64_t interval(const Trials& trials, Way way) const;

  const bool unites_;
  const double connect_s_;
  double spent_s_ = 0;  // in all sums
  bool at_once_ = false;
  std::map<Bin, Trials> bins_;
  std::map<int, Samples> library_;  // by size class
  std::array<bool, kWays> used_{};
};

}  // namespace omnihvd
