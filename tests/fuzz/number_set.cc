// Sets of numbers (protocol/number_set.h): what is written is read, and what is read is canonical.
#include "protocol/number_set.h"

#include <set>

#include "input.h"

using namespace omnihvd;
using fuzz::Bytes;

FUZZ(in) {
  const uint64_t range = in.between(0, 3000) << (in.flag() ? 0 : in.between(0, 20));
  const uint64_t count = in.between(0, std::min<uint64_t>(range, 1000));
  const size_t size = set_bytes(count, range);
  std::vector<uint32_t> numbers(count), again(count);
  if (in.flag()) {
    std::set<uint32_t> drawn;
    while (drawn.size() < count && !in.empty()) drawn.insert(uint32_t(in.between(0, range - 1)));
    for (uint32_t least = 0; drawn.size() < count; ++least) drawn.insert(least);
    numbers.assign(drawn.begin(), drawn.end());
    Bytes written(size);
    write_set(numbers.data(), count, range, written.data());
    MUST(read_set(written.data(), count, range, again.data()));
    MUST(again == numbers);
  } else {
    const Bytes given = in.bytes(size);
    if (!read_set(given.data(), count, range, numbers.data())) return;
    for (size_t i = 0; i < count; ++i)
      MUST(numbers[i] < range && (i == 0 || numbers[i] > numbers[i - 1]));
    Bytes written(size);
    write_set(numbers.data(), count, range, written.data());
    MUST(written == given);
  }
}
