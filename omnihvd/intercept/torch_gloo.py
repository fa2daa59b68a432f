"""Hooks into PyTorch's own process groups: at their start, and into their sums on Gloo."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any, Callable

from omnihvd.intercept.after_import import after_import
from omnihvd.log import say_once_per_job, warn_once_per_job

LIBRARY = "Gloo"
MODULE = "torch.distributed.distributed_c10d"


def on_init(then: Callable[[ModuleType], None]) -> None:
    """Calls `then` after each init_process_group() from now on, with torch.distributed's module."""
    after_import(MODULE, lambda c10d: _call_after(c10d, then))


def install() -> None:
    """Makes omnihvd intercept the sums of new process groups on Gloo."""
    after_import(MODULE, _intercept)


def intercepts(c10d: ModuleType) -> bool:
    """Whether omnihvd intercepts the default process group's sums on Gloo."""
    return getattr(c10d.group.WORLD, "omnihvd_intercepts", False)


def in_torch() -> list[str]:
    """PyTorch's module of process groups, if PyTorch is imported and was built with Gloo."""
    c10d = sys.modules.get(MODULE)  # not there without process groups
    return [MODULE] if c10d is not None and c10d.is_gloo_available() else []


def describe(library: str) -> str:
    return "its process groups"


def problem(library: str) -> str | None:
    return None


def backends(c10d: ModuleType) -> set[str]:
    """The default process group's backends: {"gloo"}, {"gloo", "nccl"}, ..."""
    # "cpu:gloo,cuda:nccl"
    return {part.rpartition(":")[2] for part in str(c10d.get_backend_config()).split(",")}


def _call_after(c10d: ModuleType, then: Callable[[ModuleType], None]) -> None:
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        then(c10d)

    for module in (c10d, sys.modules.get("torch.distributed")):  # the name's two places
        if getattr(module, "init_process_group", None) is original:
            module.init_process_group = init_process_group  # type: ignore[union-attr]


@functools.cache
def _intercept(c10d: ModuleType) -> None:
    original = getattr(c10d, "_new_process_group_helper", None)
    if original is None:
        warn_once_per_job(
            "this PyTorch makes process groups in another way than omnihvd knows: their sums stay "
            "Gloo's. DDP can have them by omnihvd.torch.allreduce_hook."
        )
        return
    if c10d.is_initialized() and "gloo" in backends(c10d):
        say_once_per_job(
            "omnihvd was imported after init_process_group(): the sums of groups that were made "
            "before stay Gloo's, but for those of its DDP hook. Import omnihvd before "
            "init_process_group() on every rank; in a notebook, restart the kernel first."
        )

    @functools.wraps(original)
    def helper(*args: Any, **kwargs: Any) -> Any:
        ours = importlib.import_module("omnihvd.torch.process_group")  # PyTorch is complete by now
        return ours.new_group(original, c10d, *args, **kwargs)

    c10d._new_process_group_helper = helper  # type: ignore[attr-defined]
