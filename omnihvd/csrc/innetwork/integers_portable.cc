#include "innetwork/integers_loops.h"

namespace omnihvd {
const IntegerOps portable_integer_ops = {exponent, from_floats, to_floats};
}  // namespace omnihvd
