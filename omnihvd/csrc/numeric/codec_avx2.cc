#include "numeric/codec_loops.h"
#include "numeric/lossless_loops.h"

#if defined(__x86_64__)
namespace omnihvd {
const CodecOps avx2_codec_ops = {encode, decode, encode_lossless, decode_lossless};
}  // namespace omnihvd
#endif
