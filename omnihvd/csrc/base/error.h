// The two kinds of failure.
//
// Error: something outside went wrong (a peer died, a setting is bad, a buffer is too small). The
//   message names the cause, the rank or host, and the remedy. The caller can continue: the
//   original library or the user handles it.
// Broken: an invariant of our own does not hold. Never caught to continue; reported as a bug.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace omnihvd {

// Visible even in libraries that hide all other symbols: one library throws them and another
// catches them.
class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class __attribute__((visibility("default"))) Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// As messages name a rank.
inline std::string rank_name(uint64_t rank, const std::string& host) {
  return "rank " + std::to_string(rank) + " (" + host + ")";
}

#define OMNIHVD_STRINGIFY_(x) #x
#define OMNIHVD_STRINGIFY(x) OMNIHVD_STRINGIFY_(x)
#define OMNIHVD_INVARIANT(condition)                                              \
  do {                                                                            \
    if (!(condition))                                                             \
      throw ::omnihvd::Broken("bug in omnihvd: not (" #condition ") at " __FILE__ \
                              ":" OMNIHVD_STRINGIFY(__LINE__));                   \
  } while (0)

}  // namespace omnihvd
