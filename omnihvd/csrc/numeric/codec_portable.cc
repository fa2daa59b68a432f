#include "numeric/codec_loops.h"
#include "numeric/lossless_loops.h"

namespace omnihvd {
const CodecOps portable_codec_ops = {encode, decode, encode_lossless, decode_lossless};
}  // namespace omnihvd
