"""Arguments of compressors and codecs that cannot be: each message says what would do."""

from __future__ import annotations

import re
import types

import pytest

from omnihvd import codecs, compressors
from omnihvd.compression import block_random, block_topk, eight_bit, grace, power_sgd, sign_sgd


class Half:
    """GRACE's interface, with an aggregate() that is no plain sum."""

    def compress(self, tensor, name):
        return [tensor], None

    def decompress(self, tensors, ctx):
        return tensors[0]

    def aggregate(self, tensors):
        return max(tensors)


HALF = Half()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: block_topk("1"), "ratio is '1': it must be a number, not str"),
        (lambda: block_random(1, seed=0.5), "seed is 0.5: it must be an integer, not float"),
        (lambda: block_random(1, seed=-1), "seed is -1: it must be at least 0"),
        (lambda: block_topk(0), "ratio is 0.0: it must be above 0, and 1 at most"),
        (
            lambda: compressors.block_threshold(-1),
            "threshold is -1.0: it must be a finite number, 0 or more",
        ),
        (
            lambda: compressors.sidco(0.1, "normal"),
            "distribution is 'normal': it must be one of ('exponential', 'gamma', 'pareto')",
        ),
        (lambda: compressors.topk_threshold(0.1, budget=9), "a threshold or a budget: give one"),
        (lambda: compressors.inceptionn(25), "bits is 25: it must be 24 at most"),
        (lambda: compressors.sketch(256), "quantiles is 256: it must be 255 at most"),
        (lambda: compressors.natural_dithering(5), "bits is 5: it must be 4 or 8"),
        (lambda: compressors.signum(1), "beta is 1: it must be at least 0 and less than 1"),
        (
            lambda: block_topk(0.1).with_momentum_correction(1.5),
            "momentum is 1.5: it must be at least 0 and less than 1",
        ),
        (
            lambda: sign_sgd().with_error_feedback(),
            "sign_sgd keeps no residual, so it sends nothing later",
        ),
        (
            lambda: power_sgd().with_momentum_correction(0.9),
            "power_sgd has no momentum that is corrected",
        ),
        (lambda: block_topk(0.1).with_codec("zip"), "codec is 'zip': it must be one of ("),
        (lambda: eight_bit().with_codec("natural"), "sends no values that could be coded"),
        (lambda: block_topk(0.1).with_clipping(0), "norm is 0: it must be above 0, and finite"),
        (lambda: eight_bit().with_clipping(1), "eight_bit keeps and sends gradients unclipped"),
        (
            lambda: eight_bit().with_warmup(),
            "warm-up lowers a ratio, which eight_bit does not have",
        ),
        (
            lambda: block_topk(0.1).with_warmup(0, 0.5),
            "warm-up over 0.0 epochs from 0.5: epochs must be positive, and start between the "
            "final ratio (0.1) and 1",
        ),
        (
            lambda: block_random(0.1).with_delay_control(10),
            "block_random cannot send more or less from step to step",
        ),
        (
            lambda: block_topk(0.1).with_delay_control(0),
            "budget_ms is 0: it must be above 0, and finite",
        ),
        (
            lambda: block_topk(0.1).with_error_feedback(False).with_momentum_correction(0.9),
            "momentum correction accumulates the unsent: it needs error feedback",
        ),
        (
            lambda: block_topk(0.1).with_codec("natural").with_clipping(1, together=True),
            "with_codec() clips each parameter's gradient by itself",
        ),
        (
            lambda: block_topk(0.1).with_warmup().with_delay_control(10),
            "warm-up and delay control would both set the ratio",
        ),
        (
            lambda: block_topk(0.1).with_floor().with_delay_control(10),
            "a floor and delay control would both set the ratio",
        ),
        (
            lambda: eight_bit().with_floor(),
            "eight_bit has no more to send: use with_certificate()",
        ),
        (lambda: block_topk(0.1).with_floor(2), "cosine is 2.0: it must be above 0, and 1 at most"),
        (
            lambda: grace(types.SimpleNamespace(compress=print)),
            "has no decompress(), which GRACE's interface has",
        ),
        (
            lambda: grace(HALF, None, "alltoall"),
            "communicator is 'alltoall': it must be one of ('sum', 'allreduce', ",
        ),
        (
            lambda: grace(HALF, None, "sum"),
            "is no plain sum: it has to see what each rank sent, by communicator=",
        ),
        (
            lambda: grace(HALF).config.rule.check_use(averages=False, grouped=False),
            "an object of GRACE's interface averages by itself: set op=hvd.Average",
        ),
        (
            lambda: grace(HALF).config.rule.check_use(averages=True, grouped=True),
            "grace by allgather needs groups=None",
        ),
        (
            lambda: power_sgd().config.rule.check_use(averages=True, grouped=True),
            "power_sgd sums each parameter in two steps: it needs groups=None",
        ),
        (
            lambda: compressors.one_bit_sgd().config.rule.check_use(averages=True, grouped=True),
            "one_bit_sgd sums each parameter in two steps: it needs groups=None",
        ),
        (lambda: codecs.qsgd(4.0), "bits is 4.0: it must be an integer, not float"),
        (lambda: codecs.qsgd(3), "bits is 3: it must be 2, 4 or 8"),
        (
            lambda: codecs.terngrad().with_error_feedback(),
            "terngrad has no error feedback, since it clips: use qsgd(bits=2)",
        ),
    ],
)
def test_an_argument_that_cannot_be_is_explained(make, said):
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        make()


def test_a_tensor_too_large_for_a_codec():
    from omnihvd.compression.codec import Format

    said = "a tensor of 2147483648 elements is too large for a codec"
    with pytest.raises(ValueError, match=said):
        _ = Format(codecs.natural(), 1 << 31).size


def test_ranks_that_encode_nothing_of_their_own_have_no_error_feedback(monkeypatch):
    from omnihvd.compression import order

    monkeypatch.setattr(order, "hosts_sum_first", lambda: True)
    codecs.natural().check_order()
    said = "OMNIHVD_COMPRESS_FIRST=0 is not for int4 with error feedback: ranks encode nothing of"
    with pytest.raises(ValueError, match=said):
        codecs.int4().compress(None)


def test_codecs_and_plain_tensors_are_not_reduced_in_one_group():
    from omnihvd.compression.codec import ENVELOPE, Whole, envelopes_of

    coded, plain = types.SimpleNamespace(**{ENVELOPE: object()}), types.SimpleNamespace()
    whole = Whole(codecs.natural()).mark(types.SimpleNamespace())
    assert envelopes_of([]) == envelopes_of([plain, whole]) == []
    assert envelopes_of([whole, coded]) == [getattr(whole, ENVELOPE), getattr(coded, ENVELOPE)]
    with pytest.raises(ValueError, match="a grouped allreduce has tensors under a codec and oth"):
        envelopes_of([coded, plain])
