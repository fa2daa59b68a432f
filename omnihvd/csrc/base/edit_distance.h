// The edit distance between two words.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace omnihvd {

// The fewest letters to change, remove or insert to turn a into b.
inline size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (const char letter : a) {
    size_t before = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j)
      before = std::exchange(row[j],
                             std::min({row[j] + 1, row[j - 1] + 1, before + (letter != b[j - 1])}));
  }
  return row.back();
}

}  // namespace omnihvd
