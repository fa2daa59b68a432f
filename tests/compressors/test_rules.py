"""Arguments, schedules and numbers that no framework is needed for."""

import subprocess
import sys

import numpy as np
import pytest

from omnihvd.compression import block_random, block_threshold, block_topk, topk_threshold
from omnihvd.compression.rules import kept_count, random_turn


def test_importing_and_making_compressors_imports_no_framework():
    code = (
        "import sys; from omnihvd import compression as c; c.block_topk(0.1).with_warmup(3);"
        "print([m for m in ('torch', 'tensorflow', 'horovod') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("ratio", "blocks", "kept"),
    [(0.05, 100, 5), (0.1, 30, 3), (0.01, 10, 1), (0.5, 3, 2), (1.0, 7, 7), (0.26, 10, 3)],
)
def test_ratio_keeps_the_nearest_number_of_blocks_but_one_at_least(ratio, blocks, kept):
    assert kept_count(ratio, blocks) == kept


@pytest.mark.parametrize(("count", "blocks"), [(1, 1), (3, 9), (3, 10), (7, 10), (10, 10)])
def test_each_block_has_its_turn_in_each_shuffle(count, blocks):
    turns = -(-blocks // count)
    for step in range(3 * turns):
        shuffle, start = random_turn(step, count, blocks)
        assert shuffle == step // turns and 0 <= start <= blocks - count
    starts = [random_turn(step, count, blocks)[1] for step in range(turns)]
    taken = {block for start in starts for block in range(start, start + count)}
    assert taken == set(range(blocks))


@pytest.mark.parametrize(
    "make",
    [
        lambda: block_topk(0),
        lambda: block_topk(1.5),
        lambda: block_topk(float("nan")),
        lambda: block_topk(0.1, block_size=0),
        lambda: block_random(0.1, seed=-1),
        lambda: block_threshold(-1),
        lambda: topk_threshold(float("inf")),
        lambda: block_topk(0.1).with_momentum_correction(1.0),
        lambda: block_topk(0.1).with_error_feedback(False).with_momentum_correction(0.9),
        lambda: block_topk(0.1).with_momentum_correction(0.9).with_error_feedback(False),
        lambda: block_topk(0.1).with_warmup(epochs=0),
        lambda: block_topk(0.3).with_warmup(start=0.25),
        lambda: block_topk(0.3).with_warmup(start=1.5),
        lambda: block_topk(0.1).with_warmup(steps_per_epoch=0),
        lambda: block_threshold(0.1).with_warmup(),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize(
    ("make", "name", "kind"),
    [
        (lambda: block_topk("0.1"), "ratio", "str"),
        (lambda: block_topk(None), "ratio", "NoneType"),
        (lambda: block_topk(0.1, block_size="256"), "block_size", "str"),
        (lambda: block_topk(0.1, block_size=256.0), "block_size", "float"),
        (lambda: block_random(0.1, seed=0.5), "seed", "float"),
        (lambda: block_threshold([1]), "threshold", "list"),
        (lambda: topk_threshold(True), "threshold", "bool"),
        (lambda: block_topk(0.1).with_momentum_correction("0.9"), "momentum", "str"),
        (lambda: block_topk(0.1).with_warmup(epochs="5"), "epochs", "str"),
        (lambda: block_topk(0.1).with_warmup(steps_per_epoch=1.5), "steps_per_epoch", "float"),
        (lambda: block_topk(0.1).set_epoch("1"), "epoch", "str"),
    ],
)
def test_arguments_of_another_type_are_named(make, name, kind):
    with pytest.raises(TypeError, match=f"^{name} is .*: it must be an? .*, not {kind}$"):
        make()


def test_numpys_numbers_are_numbers():
    made = block_topk(np.float32(0.5), block_size=np.int64(64))
    assert made.config == block_topk(0.5, block_size=64).config


@pytest.mark.parametrize(
    "text",
    [
        "block_topk(ratio=0.1, block_size=256)",
        "block_random(ratio=0.1, seed=3, block_size=32).with_error_feedback(False)",
        "block_threshold(threshold=0.5, block_size=256).with_momentum_correction(0.9)",
        "topk_threshold(threshold=0.001)",
        "block_topk(ratio=0.1, block_size=64)"
        ".with_warmup(epochs=5.0, start=0.25, steps_per_epoch=None)",
    ],
)
def test_a_compressors_representation_makes_it_again(text):
    assert repr(eval(text)) == text


def test_block_size_follows_the_transport(monkeypatch):
    monkeypatch.setenv("OMNIHVD_BLOCK_SIZE", "64")
    assert block_topk(0.1).config.block_size == 64
    assert block_topk(0.1, block_size=32).config.block_size == 32
    monkeypatch.delenv("OMNIHVD_BLOCK_SIZE")
    assert block_topk(0.1).config.block_size == 256


def test_with_methods_leave_the_original_alone():
    plain = block_topk(0.1)
    changed = plain.with_error_feedback(False).with_warmup(2, steps_per_epoch=3)
    assert plain.config.error_feedback and plain.config.warm_up is None
    assert not changed.config.error_feedback and changed.config.warm_up is not None


def test_warm_up_is_exponential():
    """The schedule of the Deep Gradient Compression paper: a factor of 4 each epoch."""
    warming = block_topk(0.25 / 4**4).with_warmup(epochs=4, start=0.25)
    for epoch in range(7):
        warming.set_epoch(epoch)
        assert warming.ratio(step=123) == pytest.approx(0.25 / 4 ** min(epoch, 4))


def test_warm_up_counts_steps_until_told_the_epoch():
    warming = block_topk(0.01).with_warmup(epochs=2, start=0.25, steps_per_epoch=10)
    assert warming.ratio(0) == 0.25
    assert warming.ratio(10) == pytest.approx(0.05)
    assert warming.ratio(20) == warming.ratio(99) == pytest.approx(0.01)
    warming.set_epoch(0)
    assert warming.ratio(20) == 0.25


def test_warm_up_without_an_epoch_is_an_error():
    with pytest.raises(RuntimeError, match="set_epoch"):
        block_topk(0.01).with_warmup().ratio(0)


def test_thresholds_have_no_ratio():
    assert block_threshold(0.1).ratio(5) == topk_threshold(0.1).ratio(5) == 1.0
