"""Runs a script or module with omnihvd under it, otherwise as `python` would."""

from __future__ import annotations

import builtins
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Callable

from omnihvd import engine, takeover
from omnihvd.takeover.notices import notices


def run(arguments: list[str], instead: Callable[[], None] | None = None) -> int:
    """arguments: a script, -m and a module, or -c and code, with its own. instead: what to do
    instead of taking sums over. Returns the exit status, where the program does not end by an
    exception: that goes on to Python, which shows it."""
    try:
        if instead:
            takeover.leave_sums_alone()
            instead()
        else:
            takeover.install_now()
            notices.is_command = True
    except (engine.EngineMissing, RuntimeError) as why:
        print(f"omnihvd: {why}", file=sys.stderr)
        return 2
    sys.excepthook = _without_our_frames(sys.excepthook)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0:1] = [str(Path.cwd())]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0:1] = [""]
        _run(compile(arguments[1], "<string>", "exec", dont_inherit=True), "<string>")
    else:
        sys.argv = arguments
        sys.path[0:1] = [str(Path(arguments[0]).resolve().parent)]
        path = str(Path(arguments[0]).absolute())
        _run(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), path)
    return 0


def _run(code: CodeType, path: str) -> None:
    main = ModuleType("__main__")
    vars(main).update(
        __file__=path,
        __loader__=SourceFileLoader("__main__", path),
        __builtins__=builtins,
        __cached__=None,
    )
    sys.modules["__main__"] = main
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
