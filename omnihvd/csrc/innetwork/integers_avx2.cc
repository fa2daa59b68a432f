#include "innetwork/integers_loops.h"

#if defined(__x86_64__)
namespace omnihvd {
const IntegerOps avx2_integer_ops = {exponent, from_floats, codes_from_floats, from_codes,
                                     to_floats};
}  // namespace omnihvd
#endif
