"""benchmarks/visible_changes.py sends what it says, and keeps the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks import visible_changes as tried  # noqa: E402

STEPS = 12


def replicas(count: int) -> list[tried.Replica]:
    return tried.replicas_of("bert", Path("no data"), "tiny", count, seed=1)


def weights_of(replica: tried.Replica) -> torch.Tensor:
    return tried.parameters_to_vector(replica.model.parameters()).detach().clone()


def test_a_replica_sends_what_the_next_forward_pass_sees_and_keeps_the_rest() -> None:
    ((gated,), (whole,)) = replicas(1), replicas(1)
    weights = weights_of(gated)
    for steps in (range(3), range(3, 6)):
        sent = gated.visible(weights, steps)
        assert gated.residual is not None
        if steps.start == 0:
            made = whole.change(weights, steps)
            assert torch.equal(sent + gated.residual, made)
            assert torch.equal((weights - sent).bfloat16(), (weights - made).bfloat16())
        assert 0 < tried.share(sent != 0) < 1
        assert not (sent.bool() & gated.residual.bool()).any()
        weights -= sent


@pytest.mark.parametrize("method", ["averaged", "dense"])
def test_one_replica_alone_trains_as_without_the_others(method: str) -> None:
    ((plain,), (tested,)) = replicas(1), replicas(1)
    start = weights_of(plain)
    for step in range(STEPS):
        plain.backward(step)
        plain.optimizer.step()
        plain.schedule.step()
    if method == "dense":
        tried.dense([tested], STEPS)
    else:
        tried.in_rounds([tested], method, STEPS)
    # Sums round, and AdamW divides by small gradients: how much, the processor decides.
    change, error = weights_of(plain) - start, weights_of(tested) - weights_of(plain)
    assert error.norm() < 0.01 * change.norm(), error.norm()


def test_a_block_is_sent_if_any_of_its_elements_is() -> None:
    elements = torch.zeros(2 * tried.BLOCK + 5, dtype=torch.bool)
    elements[[0, 3, -1]] = True
    assert tried.blocks(elements).tolist() == [True, False, True]
