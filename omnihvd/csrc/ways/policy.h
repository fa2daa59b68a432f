// Which way is fastest, from how long sums took: kept by rank 0, whose orders all ranks follow.
//
// Sums are told apart by cells: their size and the share of blocks that is non-zero on any rank
// (densities.h). In a cell the fastest way is used, and others are tried now and then. How long a
// way takes where it has not been tried is bounded by what it took in other cells, as times grow
// with bytes, but not faster than those. From T0 seconds for a tensor of S0 bytes, U0 of them in
// the union of blocks, follows for one of S and U:
//
//   T0 x min(1, S/S0, U/U0)  <=  T  <=  T0 x max(1, S/S0, U/U0)
//
// A cell's first sums are made in the way that is likely to be the fastest by this. A way is tried
// the later, and again the later, the slower it is expected to be or was: in the long run trials
// cost 2% of the time.
//
// Where nothing is known: small tensors begin with the library's own sum, since omnihvd's own way
// connects the ranks first; large ones with omnihvd's, which tells the density.
//
// Streaming by the codec without loss makes messages smaller and takes processor time: it is tried
// where streaming has shown to wait for the link.
//
// Pure: times are arguments. A sample is one sum's seconds per byte; the score of a way in a cell
// is the lower median of its last five.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/way.h"
#include "ways/densities.h"

namespace omnihvd {

struct Cell {
  int size = 0;     // size_class()
  int density = 0;  // density_class(), or kUnknown
  bool operator<(const Cell& o) const {
    return size != o.size ? size < o.size : density < o.density;
  }
};

// What to do in a cell: `after` sums by `now`, then one by `trial`; then rank 0 gives a new order.
struct Order {
  Way now = Way::original;
  Way trial = Way::original;
  uint16_t after = 0;
};

class Policy {
 public:
  // unites: whether sums can be made by uniting.
  explicit Policy(bool unites = true) : unites_(unites) {}

  // Whether that is a way's first sum, in which ranks connect; it is not to be measured.
  bool connects(Way way);
  // A tensor of `bytes`, of which `united` were in the union of blocks, if that is known.
  void measured(Cell cell, Way way, uint64_t bytes, std::optional<uint64_t> united, double seconds);
  // The library alone took this for a sum of so many bytes.
  void library_took(uint64_t bytes, double seconds);
  Order order(Cell cell, uint64_t bytes);

 private:
  struct Samples {
    std::vector<double> last;  // seconds per byte
    void add(double value);
    double score() const;
  };
  struct Trials {
    std::array<Samples, kWays> ways;
    std::array<uint64_t, kWays> due{};  // when it is tried again; 0: at no time yet
    uint64_t now = 1;                   // sums ordered so far
    Way best = Way::automatic;          // of those that were tried; automatic: none was
    double bytes = 0, united = 0;       // of the last sum
  };
  struct Bounds {  // of seconds; most 0: nothing is known
    double least = 0, most = 0;
    void add(double took, double bytes, double united);
    double likely() const;
  };
  // Whether a way may be the fastest in a cell at all.
  bool allowed(Cell cell, const Trials& trials, Way way) const;
  Bounds bounds(const Trials& trials, Way way) const;
  double expected(const Trials& trials, Way way) const;
  Way first(Cell cell, const Trials& trials) const;
  uint64_t interval(const Trials& trials, Way way) const;

  const bool unites_;
  std::map<Cell, Trials> cells_;
  std::map<int, Samples> library_;  // by size class
  std::array<bool, kWays> used_{};
};

}  // namespace omnihvd
