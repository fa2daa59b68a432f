"""All ranks ask for sums on GPUs, or NCCL makes them: the ranks' answer is one, however late some
are."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from omnihvd.intercept import gpu_request
from omnihvd.intercept.gpu_request import YES


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(gpu_request, "PATIENCE_S", 0.3)


def of_ranks(ask, answers: list[str], late: dict[int, float] | None = None) -> list[str]:
    """Each asking rank's result. An empty answer: the rank does not ask."""

    def rank(number: int) -> str:
        time.sleep((late or {}).get(number, 0))
        return ask(number, answers[number])

    with ThreadPoolExecutor(len(answers)) as pool:
        return list(pool.map(rank, [r for r, answer in enumerate(answers) if answer]))


@pytest.fixture(params=["store", "votes"])
def ask(request, tmp_path):
    if request.param == "store":
        distributed = pytest.importorskip("torch.distributed")
        path = str(tmp_path / "store")

        def ask_store(rank: int, answer: str) -> str:
            store = distributed.FileStore(path, 3)
            return gpu_request.ask_store(store, rank, 3, "question", answer)

        return ask_store
    horovod = Horovod(3)
    return lambda rank, answer: gpu_request.ask_by_votes(horovod.vote, "question", answer)


class Horovod:
    """Its controller: a tensor is reduced once all ranks have given it."""

    def __init__(self, size: int) -> None:
        self.size, self.changed = size, threading.Condition()
        self.given: dict[str, list[int]] = {}

    def vote(self, name: str, number: int) -> int:
        with self.changed:
            given = self.given.setdefault(name, [])
            given.append(number)
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(given) == self.size)
            return min(given)


def test_all_ask(ask):
    assert of_ranks(ask, [YES] * 3) == [""] * 3


@pytest.mark.parametrize("silent", [0, 2])
def test_a_rank_that_does_not_ask(ask, silent):
    answers = [YES] * 3
    answers[silent] = ""
    why = of_ranks(ask, answers)
    assert all(why) and len(why) == 2
    assert all("does not ask" in said or "not all ranks" in said for said in why)


@pytest.mark.parametrize("answer", ["yes: 0.0.0", "it cannot"])
def test_a_rank_that_cannot(ask, answer):
    assert all(of_ranks(ask, [YES, answer, YES]))


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("seconds", [0.2, 0.31, 0.6, 1.0])
def test_a_late_rank(ask, late, seconds):
    """Whether it comes in time or not, all ranks come to the same answer."""
    assert len({bool(why) for why in of_ranks(ask, [YES] * 3, {late: seconds})}) == 1


def test_a_rank_that_answers_as_the_wait_ends(tmp_path):
    """All answers are there when rank 0 looks, though its wait was in vain."""
    store = pytest.importorskip("torch.distributed").FileStore(str(tmp_path / "store"), 2)

    class Store:
        def __getattr__(self, name):
            return getattr(store, name)

        def wait(self, keys, seconds):
            store.set("question/1", YES)
            raise RuntimeError("the time is over")

    assert gpu_request.ask_store(Store(), 0, 2, "question") == ""
