"""The older names of modules, and what a checkpoint of DDP's hook holds."""

import importlib
import pickle
import sys

import pytest

from omnihvd import compression


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compressors", "compression"),
        ("codecs", "compression"),
        ("compressors.rules", "compression.rules"),
        ("codecs.codec", "compression.codec"),
        ("carriers", "intercept"),
        ("carriers.nccl", "intercept.nccl"),
    ],
)
def test_an_older_name_is_the_newer_module(old, new):
    newer = importlib.import_module(f"omnihvd.{new}")
    sys.modules.pop(f"omnihvd.{old}", None)
    with pytest.warns(DeprecationWarning, match=rf"omnihvd\.{old} is omnihvd\.{new} now"):
        assert importlib.import_module(f"omnihvd.{old}") is newer
    assert newer.__spec__.name == newer.__name__


def test_an_older_pickle_is_read():
    now = pickle.dumps(compression.topk(0.5), protocol=0)
    for name in [name for name in sys.modules if name.startswith("omnihvd.compressors")]:
        sys.modules.pop(name)
    old = now.replace(b"comnihvd.compression.", b"comnihvd.compressors.")
    with pytest.warns(DeprecationWarning):
        assert old != now and repr(pickle.loads(old)) == "topk(ratio=0.5)"
