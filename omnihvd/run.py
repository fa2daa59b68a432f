"""Runs a script or module with omnihvd under it, otherwise as `python` would."""

from __future__ import annotations

import builtins
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Callable

from omnihvd import engine, hooks
from omnihvd.notices import notices


def run(arguments: list[str], instead: Callable[[], None] | None = None) -> int:
    """arguments: a script and its own, or -m, a module and its own. instead: what to do instead of
    taking sums over. Returns the exit status, where the program does not end by an exception: that
    goes on to Python, which shows it."""
    try:
        if instead:
            hooks.leave_sums_alone()
            instead()
        else:
            hooks.install_now()
            notices.is_command = True
    except (engine.EngineMissing, RuntimeError) as why:
        print(f"omnihvd: {why}", file=sys.stderr)
        return 2
    sys.excepthook = _without_our_frames(sys.excepthook)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0:1] = [str(Path.cwd())]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0:1] = [str(Path(arguments[0]).resolve().parent)]
        _run_script(str(Path(arguments[0]).absolute()))
    return 0


def _run_script(path: str) -> None:
    main = ModuleType("__main__")
    vars(main).update(
        __file__=path,
        __loader__=SourceFileLoader("__main__", path),
        __builtins__=builtins,
        __cached__=None,
    )
    sys.modules["__main__"] = main
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


def _without_our_frames(show: Any) -> Any:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        theirs = trace
        while theirs is not None and theirs.tb_frame.f_code is not run.__code__:
            theirs = theirs.tb_next
        while theirs is not None and _is_ours(theirs.tb_frame.f_code.co_filename):
            theirs = theirs.tb_next
        if theirs is None and not isinstance(error, SyntaxError):  # of the script itself
            theirs = trace
        show(kind, error.with_traceback(theirs), theirs)

    return hook


def _is_ours(file: str) -> bool:
    return file == __file__ or file.endswith(("<frozen runpy>", "/runpy.py"))
