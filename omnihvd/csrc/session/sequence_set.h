// The numbers 1, 2, 3, ... that have been seen, in whatever order; small while gaps are few.
#pragma once

#include <cstdint>
#include <set>

namespace omnihvd {

class SequenceSet {
 public:
  bool insert(uint64_t number) {  // false: seen before
    if (number <= floor_ || !above_.insert(number).second) return false;
    while (!above_.empty() && *above_.begin() == floor_ + 1) {
      ++floor_;
      above_.erase(above_.begin());
    }
    return true;
  }

 private:
  uint64_t floor_ = 0;  // all numbers up to this one
  std::set<uint64_t> above_;
};

}  // namespace omnihvd
