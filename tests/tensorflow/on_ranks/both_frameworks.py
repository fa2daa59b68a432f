"""On each rank: PyTorch and TensorFlow in one process, both under omnihvd."""

from __future__ import annotations

import horovod.tensorflow as tf_hvd
import horovod.torch as torch_hvd
import numpy as np
import tensorflow as tf
import torch

import omnihvd
from omnihvd import OmniReduce


def main() -> None:
    torch_hvd.init()
    tf_hvd.init()
    rank, size = torch_hvd.rank(), torch_hvd.size()
    values = np.arange(100_000, dtype=np.float32) * (rank + 1)
    expected = np.arange(100_000, dtype=np.float32) * (size * (size + 1) // 2)
    calls = omnihvd.stats()["calls"]
    for _ in range(2):
        ours = torch_hvd.allreduce(torch.from_numpy(values), op=torch_hvd.Sum, name="torch")
        np.testing.assert_array_equal(ours.numpy(), expected)
        theirs = tf_hvd.allreduce(
            tf.constant(values), op=tf_hvd.Sum, compression=OmniReduce, name="tensorflow"
        )
        np.testing.assert_array_equal(theirs.numpy(), expected)
    assert omnihvd.stats()["calls"] == calls + 4
    print("all well", flush=True)


main()
