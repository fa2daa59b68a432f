// The implementations behind codec.h: one per instruction set.
#pragma once

#include "numeric/codec.h"

namespace omnihvd {

extern const CodecOps portable_codec_ops;
#if defined(__x86_64__)
extern const CodecOps avx2_codec_ops;
extern const CodecOps avx512_codec_ops;
#endif

}  // namespace omnihvd
