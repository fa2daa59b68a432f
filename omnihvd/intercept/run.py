"""Runs a script or module with its sums intercepted, otherwise as `python` would."""

from __future__ import annotations

import builtins
import pkgutil
import runpy
import sys
from importlib.machinery import BuiltinImporter, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Callable

from omnihvd import engine
from omnihvd.intercept import children, install
from omnihvd.intercept.notices import notices


def run(arguments: list[str], instead: Callable[[], None] | None = None) -> int:
    """arguments: a script, -m and a module, or -c and code, with its own. instead: what to do
    instead of intercepting sums. Returns the exit status, where the program does not end by an
    exception: Python shows that one."""
    try:
        if instead:
            install.leave_sums_alone()
            instead()
        else:
            install.install_now()
            notices.is_command = True
            children.follow()
    except (engine.EngineMissing, RuntimeError) as why:
        print(f"omnihvd: {why}", file=sys.stderr)
        return 2
    sys.excepthook = _without_our_frames(sys.excepthook)
    _run(arguments, _new_main())
    return 0


def _run(arguments: list[str], main: dict[str, Any]) -> None:
    first, *others = arguments
    if first in ("-m", "-c"):
        sys.argv = [first, *others[1:]]
        _look_first_in(str(Path.cwd()) if first == "-m" else "")
        if first == "-m":
            _run_module(others[0])
        else:
            exec(compile(others[0], "<string>", "exec", dont_inherit=True), main)
        return
    sys.argv = arguments
    if pkgutil.get_importer(first):  # a folder or an archive that has a __main__.py
        _look_first_in(str(Path(first).absolute()), always=True)
        _run_module("__main__", False)
        return
    _look_first_in(str(Path(first).resolve().parent))
    path = first if Path(first).is_absolute() else f"{Path.cwd()}/{first}"  # with its dots
    main.update(__file__=path, __loader__=SourceFileLoader("__main__", path))
    if sys.version_info < (3, 15):
        main["__cached__"] = None
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main)


# `python -m` itself calls this.
_run_module = runpy._run_module_as_main  # type: ignore[attr-defined]


def _new_main() -> dict[str, Any]:
    """The namespace of a new module __main__, as the interpreter makes it."""
    had = vars(sys.modules["__main__"])
    main = ModuleType("__main__")
    vars(main).update(__loader__=BuiltinImporter, __builtins__=builtins)
    if "__annotations__" in had:  # not since Python 3.14
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    return vars(main)


def _look_first_in(folder: str, always: bool = False) -> None:
    """Python puts the program's folder first on the path, but for -P and -I."""
    without = getattr(sys.flags, "safe_path", sys.flags.isolated)
    if always or not without:
        sys.path[0 : 0 if without else 1] = [folder]


def _without_our_frames(show: Any) -> Any:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        theirs = trace
        while theirs is not None and theirs.tb_frame.f_code is not run.__code__:
            theirs = theirs.tb_next
        while theirs is not None and theirs.tb_frame.f_code.co_filename == __file__:
            theirs = theirs.tb_next
        if theirs is None and not isinstance(error, SyntaxError):  # of the script itself
            theirs = trace
        show(kind, error.with_traceback(theirs), theirs)

    return hook
