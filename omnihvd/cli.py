"""The command `omnihvd`, also `python -m omnihvd`.

omnihvd SCRIPT [ARGUMENTS]     run a training script with its sums intercepted
omnihvd -m MODULE, -c CODE     the same for a module, or for code
omnihvd --report FOLDER SCRIPT ...
                               run it with sums as they are, and report what
                               omnihvd would do (--report --help: for which
                               networks, and how often it looks)
omnihvd report FOLDER          make that report again, from several hosts'
                               files or for other networks
omnihvd check [--help]         show what was found, what omnihvd intercepts,
                               and the remedy for each gap
omnihvd lib-path [mpi|nccl]    print the library to name in LD_PRELOAD, for
                               programs without Python
omnihvd aggregator --bind HOST:PORT
                               run a dedicated aggregator
omnihvd kernels [--arch sm_90] compile the GPU kernels ahead
omnihvd bench -- LAUNCHER      measure omnihvd beside what it replaces
omnihvd stats                  explain the names in omnihvd.stats()
omnihvd top [HOST ...]         show running jobs, live
omnihvd trace FILE ... -o FILE join the traces of several ranks (OMNIHVD_TRACE)
omnihvd help [COMMAND], omnihvd --version
"""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import signal
import sys
from pathlib import Path

from omnihvd.version import __version__

COMMANDS = {
    "check": "omnihvd.check.command",
    "lib-path": "omnihvd.tools.lib_path",
    "aggregator": "omnihvd.aggregator",
    "kernels": "omnihvd.intercept.kernel_cache",
    "bench": "omnihvd.bench.command",
    "stats": "omnihvd.statistics",
    "report": "omnihvd.report.command",
    "top": "omnihvd.observe.top",
    "trace": "omnihvd.observe.traces",
}


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["help"] and arguments[1:]:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print((__doc__ or "").strip())
        return 0 if arguments else 2
    first = arguments[0]
    if first in ("-V", "--version"):
        print(f"omnihvd {__version__}")
        return 0
    if first in COMMANDS:
        return _command(first, arguments[1:])
    begin = None
    if first == "--report":
        from omnihvd import report
        from omnihvd.report.options import split

        try:
            options, arguments = split(arguments)
            begin = functools.partial(report.start, **options)
        except ValueError as why:
            print(f"omnihvd --report: {why}", file=sys.stderr)
            return 2
    mistake = _mistake(arguments)
    if mistake:
        print(f"omnihvd: {mistake}", file=sys.stderr)
        return 2
    from omnihvd.intercept.run import run  # needs the engine, unless it only reports

    return run(arguments, begin)


def _command(name: str, arguments: list[str]) -> int:
    try:
        status = int(importlib.import_module(COMMANDS[name]).main(arguments) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for later flushes
        return 128 + signal.SIGPIPE
    except (ImportError, OSError, ValueError) as why:
        print(f"omnihvd {name}: {why}", file=sys.stderr)
        return 1


def _mistake(arguments: list[str]) -> str | None:
    if not arguments:
        return "name the script to run"
    first = arguments[0]
    if first == "simulate":
        return "the simulator is not installed with omnihvd: in a clone, python -m simulator"
    if first in ("-m", "-c"):
        missing = "-m needs the name of a module" if first == "-m" else "-c needs code"
        return None if len(arguments) > 1 else missing
    if first.startswith("-"):
        return f"no option {first}; see omnihvd --help"
    if Path(first).is_file() or Path(first, "__main__.py").is_file():
        return None
    alike = difflib.get_close_matches(first, COMMANDS, n=1)
    if alike:
        return f"{first} is no file and no command; did you mean {alike[0]}?"
    return f"{first} is neither a file nor one of {', '.join(COMMANDS)}"
