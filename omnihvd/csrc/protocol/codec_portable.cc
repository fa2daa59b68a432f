#include "protocol/codec_loops.h"

namespace omnihvd {
const CodecOps portable_codec_ops = {encode, decode};
}  // namespace omnihvd
