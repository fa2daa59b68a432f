"""Makes omnihvd intercept the sums of Horovod and PyTorch in this process."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from omnihvd import engine, observe
from omnihvd.intercept import backends, horovod_library, notices, waiting
from omnihvd.intercept.after_import import after_import
from omnihvd.launchers import process_rank
from omnihvd.log import logger

# These wrap Horovod's functions for sparse gradients, compressors and codecs, by Horovod's module.
PARTS = {
    "horovod.torch.mpi_ops": ["compression.torch_codecs"],
    "horovod.torch.optimizer": ["sparse.torch_rows", "compression.torch_horovod"],
    "horovod.torch.elastic.state": ["compression.torch_elastic"],
    "horovod.tensorflow": [
        "sparse.tensorflow_rows",
        "compression.tensorflow_horovod",
        "compression.tensorflow_codecs",
    ],
}


def install() -> None:
    """Intercepts Horovod and PyTorch: now if they are imported, else at their import. The engine is
    not loaded before that, unless there are settings to verify. Raises as install_now(), or makes
    that import raise. A wrong setting ends the program with one line."""
    if any(name.startswith("OMNIHVD_") for name in os.environ) and not _is_own_command():
        with contextlib.suppress(engine.EngineMissing):  # reported where the engine is needed
            _or_end(lambda: engine.session.settings_from_environment())
    for module, names in PARTS.items():
        for name in names:
            after_import(module, functools.partial(_install_part, name))
    after_import(horovod_library.BASICS, lambda _: _let_mpi_begin_alone())
    for module in (horovod_library.BASICS, "torch"):
        after_import(module, lambda _: _or_end(install_now))


def _install_part(name: str, module: ModuleType) -> None:
    importlib.import_module(f"omnihvd.{name}").install(module)


def _is_own_command() -> bool:
    """`omnihvd ...` or `python -m omnihvd ...`: each command verifies the settings that it uses."""
    return Path((sys.argv or [""])[0]).name in ("-m", "omnihvd")


def _let_mpi_begin_alone() -> None:
    """One process without mpirun: Open MPI's wheel would look for its daemon where it was built."""
    if process_rank() is None:
        os.environ.setdefault("OMPI_MCA_ess_singleton_isolated", "1")


def _or_end(step: Callable[[], object]) -> None:
    try:
        step()
    except engine.EngineError as why:
        raise SystemExit(f"omnihvd: {why}") from None


def cover_negotiation(settings: Any) -> None:
    """Sets Horovod's own stall check, for hvd.init(), unless the user has: ranks also wait for each
    other before a sum begins, and the engine cannot see that. Horovod checks as often as it warns,
    and must have warned before it ends the job."""
    warning, timeout = settings.stall_warning_s, settings.timeout_s
    if timeout > 0:
        warning = min(warning or math.inf, timeout / 4)
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(math.ceil(timeout)))
    if warning > 0:
        os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(math.ceil(warning)))
    else:
        os.environ.setdefault("HOROVOD_STALL_CHECK_DISABLE", "1")


_left_alone = False


def leave_sums_alone() -> None:
    """From now on install_now() has no effect in this process."""
    global _left_alone
    _left_alone = True


@functools.cache
def install_now() -> None:
    """Raises ImportError when the engine cannot be had, EngineError when a setting is wrong,
    RuntimeError when it is too late."""
    if _left_alone:
        return
    settings = engine.session.settings_from_environment()
    if not settings.enable:
        logger.info("OMNIHVD_ENABLE=0: Horovod is left alone")
        return
    if horovod_library.initialized():
        raise RuntimeError(
            "omnihvd was imported after hvd.init(): another rank may be in a sum already. Import "
            "omnihvd before hvd.init() on every rank; in a notebook, restart the kernel first."
        )
    cover_negotiation(settings)
    for backend in backends.ALL:
        backend.install()
    waiting.sleep_instead_of_polling(settings)
    notices.notices.begin()
    notices.watch_exceptions()
    observe.begin(settings)
