"""Compression of gradients, for Horovod's `compression=` and for hooks of DDP.

`OmniReduce` alone loses nothing. Its factories, here under the same names, make compressors, which
choose what is summed (docs/compression.md), and codecs, which encode it in fewer bits
(docs/codecs.md). A method is a class of functions over arrays (methods/, rules.py). The faces for
PyTorch and TensorFlow keep its state and give it their arrays; they are imported with the first
gradient.
"""

from omnihvd.compression import codecs, factories
from omnihvd.compression.codec import Codec
from omnihvd.compression.codecs import *  # noqa: F403
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.counters import stats
from omnihvd.compression.factories import *  # noqa: F403
from omnihvd.compression.omni_reduce import OmniReduce

__all__ = ["Codec", "Compressor", "OmniReduce", "stats", *codecs.__all__, *factories.__all__]
