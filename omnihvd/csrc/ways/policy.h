// Which way is fastest, from how long sums took: kept by rank 0, whose orders all ranks follow.
//
// Sums are told apart by cells: their size and the share of blocks that is non-zero on any rank
// (densities.h). In a cell each way that may be worth it is tried twice; then the fastest is used,
// and the others are tried again: soon, until there are five samples, if they were close; then at
// intervals, which are the longer the slower they were: trials cost a sum less than 2% of its time
// in the long run. The first way to be tried is omnihvd's
// own, which tells the density. What has not been tried is estimated, in its favour, from the
// library's rate:
//   original at S bytes        >= S x its rate at about this size / 2
//   union of U bytes           >= U x its rate at about that size / 2
// where the rate is what its sums of compacted blocks or whole tensors took; before there were any,
// four times that of omnihvd's own. A way that is estimated at 1.3 times the best or more is not
// tried.
//
// Pure: times are arguments. A sample is one sum's seconds per byte; the score of a way is the
// lower median of its last five.
#pragma once

#include <array>
#include <cstdint>
#include <map>
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
  Way now = Way::stream;
  Way trial = Way::stream;
  uint16_t after = 0;
};

class Policy {
 public:
  // two_step: whether the library has two ways to sum.
  explicit Policy(bool two_step = true) : two_step_(two_step) {}
  // A tensor of `bytes`, of which `united` were in the union of blocks, took `seconds`.
  void measured(Cell cell, Way way, uint64_t bytes, uint64_t united, double seconds);
  // The library alone took this for a sum of so many bytes, two-step or not.
  void library_took(bool two_step, uint64_t bytes, double seconds);
  Order order(Cell cell, uint64_t bytes);

  // Seconds a byte; 0: never tried.
  double score(Cell cell, Way way) const;

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
    Way best = Way::stream;
    double share = 1;  // of the last sum: union over tensor
  };
  double estimate(const Trials& trials, Cell cell, Way way, uint64_t bytes) const;
  double rate(bool two_step, uint64_t bytes) const;

  // Whether a way may be used in a cell at all.
  bool allowed(Cell cell, Way way) const;

  const bool two_step_;
  std::map<Cell, Trials> cells_;
  std::array<std::map<int, Samples>, 2> library_;  // [two-step], by size class
};

}  // namespace omnihvd
