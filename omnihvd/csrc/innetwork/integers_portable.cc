#include "innetwork/integers_loops.h"

namespace omnihvd {
const IntegerOps portable_integer_ops = {exponent, from_floats, codes_from_floats, from_codes,
                                         to_floats};
}  // namespace omnihvd
