"""Codes that cannot be added: what each method makes of a part, and sums of them."""

import numpy as np
import parameters
import pytest

from omnihvd import compression
from omnihvd.compression import numpy_ops, part_sums, two_steps
from omnihvd.compression.compressor import CODECS
from omnihvd.compression.methods.coded_set import CodedSet
from omnihvd.compression.methods.eight_bit import dynamic_tree
from omnihvd.compression.rules import CodedRule
from omnihvd.compression.split import ParameterState

BITS = {  # an element, beside scales and the like
    "eight_bit": (compression.eight_bit(), 8),
    "sketch": (compression.sketch(), 8),
    "inceptionn": (compression.inceptionn(8), 34),
    "ef_sign": (compression.ef_sign(), 1),
    "one_bit_sgd": (compression.one_bit_sgd(), 1),
    "sign_sgd": (compression.sign_sgd(), 1),
    "signum": (compression.signum(), 1),
}
BITS |= {
    "natural_dithering": (compression.natural_dithering(), 4),
    "natural": (CODECS["natural"], 8),
    "set of natural": (CodedSet(CODECS["natural"]), 9),
    "set of signs": (CodedSet(CODECS["ef_sign"]), 2),
}
NATURAL = CODECS["natural"]
each_method = pytest.mark.parametrize("kind", BITS)


def rule_of(kind):
    method = BITS[kind][0]
    return method if isinstance(method, CodedRule) else method.config.rule


def heavy(size=20_000, seed=0):
    random = np.random.default_rng(seed)
    values = random.standard_t(4, size) * random.exponential(1, size)
    return values.astype(np.float32)


def coded(rule, values):
    return rule.decode(rule.encode(values), len(values))


@each_method
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 300, 20_001])
def test_codes_have_the_size_that_is_promised_and_sizes_return(kind, size):
    rule, values = rule_of(kind), heavy(size)
    code = rule.encode(values)
    assert code.dtype == np.uint8 and len(code) <= size * BITS[kind][1] / 8 + 4 * 64 + 9
    decoded = rule.decode(code, size)
    assert decoded.dtype == np.float32 and decoded.shape == (size,)
    large = np.abs(values) >= 2**-8
    assert (decoded * values)[large].min(initial=0) >= 0 or kind == "sketch"


@each_method
def test_zeros_stay_zeros(kind):
    values = heavy()
    values[::3] = 0
    assert not coded(rule_of(kind), values)[::3].any()
    assert not coded(rule_of(kind), np.zeros(9, np.float32)).any()


@each_method
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 3, 1000])
def test_sums_of_parts(kind, ranks, size):
    """The code of the sum of what was sent arrives; on the owner's side nothing is lost."""
    rule = rule_of(kind)
    sent = [part_sums.contribution(rule, heavy(size, seed), ranks) for seed in range(ranks)]
    total = rule.summed(sum(made.values for made in sent) / np.float32(ranks))
    rests, codes = [], []
    for rank in range(ranks):
        part = part_sums.part_of(size, rank, ranks)
        received = []
        for made in sent:
            ends = np.cumsum(made.splits)
            received.append(made.code[ends[rank] - made.splits[rank] : ends[rank]])
        rests.append(np.zeros(part.stop - part.start, np.float32))
        own = part.stop - part.start, 1 / ranks, rests[-1]
        codes.append(part_sums.summed(rule, np.concatenate(received), *own))
    result = part_sums.opened(rule, np.concatenate(codes), size, ranks)
    np.testing.assert_allclose(result + np.concatenate(rests), total, rtol=1e-4, atol=1e-5)
    if kind in ("sign_sgd", "signum"):
        np.testing.assert_array_equal(result, total)


def exchanged(steps, gradients):
    """The ranks' results, once Horovod has exchanged their codes."""
    sent, seconds = [own.first(given) for own, given in zip(steps, gradients)], []
    for rank, own in enumerate(steps):
        ends = [(code, int(splits[: rank + 1].sum()), int(splits[rank])) for code, splits in sent]
        seconds.append(own.second(np.concatenate([code[e - n : e] for code, e, n in ends])))
    return [own.result(np.concatenate(seconds)) for own in steps]


@pytest.mark.parametrize(
    "compressor",
    [
        compression.eight_bit(),
        compression.ef_sign(),
        compression.topk(0.1).with_codec("natural"),
    ],
    ids=repr,
)
def test_what_codes_lose_comes_in_later_steps(compressor):
    """In each element, what has been received and what is kept on both sides make what was
    given."""
    ranks, size = 3, 1000
    states = [ParameterState("p") for _ in range(ranks)]
    kept, owed = compressor.with_error_feedback(), np.zeros(size)
    for step in range(3):
        gradients = [heavy(size, ranks * step + rank) for rank in range(ranks)]
        steps = [two_steps.begin(numpy_ops, kept, state, two_steps.Ranks(rank, ranks, False))
                 for rank, state in enumerate(states)]  # fmt: skip
        results = exchanged(steps, [gradient.copy() for gradient in gradients])
        assert all(result.tobytes() == results[0].tobytes() for result in results)
        owed += np.sum(gradients, 0) - results[0]
        rests = np.concatenate([state.memory["sum_rest"] for state in states])
        np.testing.assert_allclose(sum(state.rest for state in states) + rests, owed, atol=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_part_that_is_not_finite_travels_plain(bad):
    values = heavy(100)
    values[10] = bad
    made = part_sums.contribution(rule_of("eight_bit"), values, 2)
    np.testing.assert_array_equal(made.values[:50], values[:50])
    assert np.isfinite(made.values[50:]).all() and made.splits[0] == 208 and made.splits[1] == 62


def test_eight_bits_err_by_less_than_a_gap_of_the_tree():
    tree = dynamic_tree()
    assert len(tree) == 128 and tree[0] == 0 and tree[-1] == 1 and (np.diff(tree) > 0).all()
    values = heavy()
    sent, largest = coded(rule_of("eight_bit"), values), np.abs(values).max()
    gaps = np.diff(tree)[np.clip(np.searchsorted(tree, np.abs(values) / largest) - 1, 0, None)]
    assert np.all(np.abs(sent - values) <= (0.5001 * gaps + 1e-6) * largest)
    assert len(np.unique(sent)) <= 255 and np.abs(sent).max() == pytest.approx(largest)


@pytest.mark.parametrize("bits", [0, 6, 10, 20, 24])
def test_inceptionn_errs_by_less_than_its_bound_in_bits_by_its_tags(bits):
    rule, values = compression.inceptionn(bits).config.rule, heavy() / 50
    sent, small = coded(rule, values), np.abs(values) < 1
    np.testing.assert_array_equal(sent[~small], values[~small])
    steps = np.trunc(values[small] * np.float32(2.0**bits))
    np.testing.assert_array_equal(sent[small], steps / np.float32(2.0**bits))
    sizes = np.abs(steps)
    none, eight = np.sum(sizes == 0), np.sum((sizes > 0) & (sizes < 128))
    sixteen = np.sum((sizes >= 128) & (sizes < 32768))
    whole = len(values) - none - eight - sixteen
    assert len(rule.encode(values)) == len(values) / 4 + eight + 2 * sixteen + 4 * whole


def test_sketch_sends_means_of_equally_full_buckets():
    values = np.random.default_rng(0).standard_normal(6400).astype(np.float32)
    sent = coded(rule_of("sketch"), values)
    kinds, counts = np.unique(sent, return_counts=True)
    assert len(kinds) == 64 and counts.min() >= 99 and counts.max() <= 101
    for value in kinds[::9]:
        assert values[sent == value].mean() == pytest.approx(value, rel=1e-3, abs=1e-5)
    with pytest.raises(ValueError, match="255 at most"):
        compression.sketch(256)


def test_sketch_has_its_buckets_where_values_are():
    values = np.zeros(640_000, np.float32)
    values[::100] = np.random.default_rng(0).standard_normal(6400)
    assert len(np.unique(coded(rule_of("sketch"), values))) == 64 + 1


def test_scales_of_signs():
    values = heavy()
    np.testing.assert_allclose(
        coded(rule_of("ef_sign"), values), np.sign(values) * np.abs(values).mean(), rtol=1e-5
    )
    sent = coded(rule_of("one_bit_sgd"), values)
    for side in (values > 0, values < 0):
        np.testing.assert_allclose(sent[side], values[side].mean(), rtol=1e-5)
    np.testing.assert_array_equal(coded(rule_of("sign_sgd"), values), np.sign(values))


@pytest.mark.parametrize("kind", ["sign_sgd", "signum"])
def test_votes_keep_no_rest(kind):
    with pytest.raises(ValueError, match="keeps no residual"):
        BITS[kind][0].with_error_feedback()
    with pytest.raises(ValueError, match="no momentum"):
        BITS[kind][0].with_momentum_correction(0.9)


@pytest.mark.parametrize(
    "method", [compression.natural_dithering(4), compression.natural_dithering(8)]
)
def test_natural_dithering_rounds_to_powers_without_bias(method):
    rule = method.config.rule
    values = np.tile(np.array([1.0, -0.75, 0.3, 0.011, -0.001, 0], np.float32), 20_000)
    sent = coded(rule, values).reshape(-1, 6)
    powers = np.unique(np.abs(sent[sent != 0]))
    assert (np.frexp(powers)[0] == 0.5).all() and powers.max() == 1
    assert len(powers) <= 2 ** (rule.bits - 1) - 1
    deviations = sent.std(0) / np.sqrt(len(sent))
    assert (np.abs(sent.mean(0) - values[:6]) <= 5 * deviations + 1e-7).all()


@pytest.mark.parametrize(
    "rule",
    [compression.natural_dithering(4).config.rule, NATURAL, CodedSet(NATURAL)],
    ids=["natural_dithering", "natural", "set"],
)
def test_ranks_draw_their_own_noise(rule):
    """Rounding adds 1/4 or -1/4 to 3/4. The mean of 16 ranks has a quarter of that
    deviation; with one noise for all ranks it would have all of it."""
    ranks, size = 16, 4000
    values = np.full((ranks, size), 0.75, np.float32)
    values[:, 0] = 1
    values[:, 1] = np.arange(1, ranks + 1) / 32  # by which alone ranks differ
    sent = np.stack([coded(rule, own) for own in values])[:, 2:]
    assert set(np.unique(sent)) == {0.5, 1.0}
    assert sent.mean(0).std() == pytest.approx(1 / 16, rel=0.1)


def test_natural_compression_keeps_powers_of_two_and_is_within_a_factor_of_two():
    powers = np.ldexp(1.0, np.arange(-20, 20)).astype(np.float32)
    np.testing.assert_array_equal(coded(CODECS["natural"], -powers), -powers)
    shares = coded(CODECS["natural"], heavy()) / heavy()
    assert shares.min() > 0.5 and shares.max() < 2 and abs(shares.mean() - 1) < 0.01


def test_two_values_and_a_bit_are_what_adaptive_quantization_sends():
    """Exactly, and in a byte for each place, at most, a bit for each value, and 2 floats."""
    pytest.importorskip("torch")
    compressor = compression.adaptive(0.02).with_codec("one_bit_sgd")
    sent = parameters.make("torch", compressor).send(heavy()).astype(np.float32)
    rule, kept = compressor.config.codec, np.count_nonzero(sent)
    assert len(np.unique(sent)) == 3 and kept == pytest.approx(0.02 * len(sent), rel=0.01)
    assert len(rule.encode(sent)) <= kept + len(sent) / 255 + kept / 8 + 28
    np.testing.assert_array_equal(coded(rule, sent), sent)


@pytest.mark.parametrize("ratio", [0.0005, 0.01, 0.3])
def test_a_set_costs_little_more_than_its_values(ratio):
    size = 100_000
    values = np.zeros(size, np.float32)
    values[np.random.default_rng(0).choice(size, int(ratio * size), replace=False)] = 1.5
    code = CodedSet(CODECS["natural"]).encode(values)
    far = ratio * size + size / 255
    assert len(code) < ratio * size + min(far, size / 8) + 30
    np.testing.assert_array_equal(CodedSet(CODECS["natural"]).decode(code, size) != 0, values != 0)


def test_with_codec_is_for_what_sends_values():
    assert repr(compression.topk(0.01).with_codec("natural")).endswith(".with_codec('natural')")
    with pytest.raises(ValueError, match="codec is 'zip'"):
        compression.topk(0.01).with_codec("zip")
    with pytest.raises(ValueError, match="no values"):
        compression.sketch().with_codec("natural")
    pytest.importorskip("torch")
    from omnihvd.torch import CompressionState

    with pytest.raises(ValueError, match=r"with_codec\(\) is for Horovod"):
        CompressionState(compression.topk(0.01).with_codec("natural"), [])


def test_what_a_part_has_lost_stays_with_it():
    """An elastic job may give a rank another number, and so another part."""
    compressor, state = compression.ef_sign(), ParameterState("p")
    rule = compressor.config.rule

    def summed_as(rank, *contributions):
        ranks = two_steps.Ranks(rank, 2, True)
        steps = two_steps.begin(numpy_ops, compressor, state, ranks)
        steps.first(np.zeros(8, np.float32))
        made = [part_sums.contribution(rule, np.array(c, np.float32), 2) for c in contributions]
        codes = [np.split(one.code, [one.splits[0]])[rank] for one in made]
        (values,) = part_sums._unpacked(rule, steps.second(np.concatenate(codes)), [4])
        return values

    summed_as(0, [1] * 8, [-3, 3, 3, 3] * 2)
    assert state.memory["sum_rest"].any()
    assert not summed_as(1, [0] * 8, [0] * 8).any()
