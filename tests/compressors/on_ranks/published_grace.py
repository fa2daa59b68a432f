"""On each rank of a Horovod job: objects of GRACE itself (github.com/sands-lab/grace, no part of
omnihvd), beside what they make of all ranks' gradients in one process."""

import importlib

import pytest
import torch
from torch_methods import matrices, of_rank, reduce
from torch_models import RANK, SIZE

from omnihvd import compression

OBJECTS = {  # file and name of the compressor, its arguments; the same of the memory
    "none": ("none.NoneCompressor", (), "none.NoneMemory", ()),
    "fp16": ("fp16.FP16Compressor", (), "none.NoneMemory", ()),
    "topk": ("topk.TopKCompressor", (0.1,), "residual.ResidualMemory", ()),
    "threshold": ("threshold.ThresholdCompressor", (1.0,), "residual.ResidualMemory", ()),
    "onebit": ("onebit.OneBitCompressor", (), "residual.ResidualMemory", ()),
    "efsignsgd": ("efsignsgd.EFSignSGDCompressor", (0.1,), "efsignsgd.EFSignSGDMemory", (0.1,)),
    "signsgd": ("signsgd.SignSGDCompressor", (), "none.NoneMemory", ()),
    "signum": ("signum.SignumCompressor", (0.9,), "none.NoneMemory", ()),
}


def made(kind):
    compressor, arguments, memory, given = OBJECTS[kind]
    found = []
    for folder, path, own in (("compressor", compressor, arguments), ("memory", memory, given)):
        file, name = path.split(".")
        module = importlib.import_module(f"grace_dl.torch.{folder}.{file}")
        found.append(getattr(module, name)(*own))
    return found


def in_one_process(objects, step, i, name):
    """The i-th parameter's, by GRACE's own code."""
    decompressed = []
    for rank, (compressor, memory) in enumerate(objects):
        tensor = memory.compensate(of_rank(rank, step)[i], name)
        tensors, ctx = compressor.compress(tensor, name)
        memory.update(tensor, name, compressor, tensors, ctx)
        decompressed.append(compressor.decompress(tensors, ctx))
    total = compressor.aggregate(decompressed)
    return total / SIZE if compressor.average else total


@pytest.mark.parametrize("communicator", [None, "allgather", "broadcast", "allreduce"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_of_grace_itself(kind, communicator):
    if communicator == "allreduce" and kind not in ("none", "fp16"):
        pytest.skip("what it compresses cannot be added")
    model, optimizer = matrices(compression.grace(*made(kind), communicator))
    objects = [made(kind) for _ in range(SIZE)]
    for step in range(3):
        got = reduce(model, optimizer, of_rank(RANK, step))
        for i, (name, _) in enumerate(model.named_parameters()):
            expected = in_one_process(objects, step, i, name)
            error = 2e-2 if kind == "fp16" else 1e-5
            torch.testing.assert_close(got[i], expected, rtol=error, atol=error)
