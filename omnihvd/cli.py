"""The command `omnihvd`, also `python -m omnihvd`.

omnihvd SCRIPT [ARGUMENTS]      run a training script with Horovod's sums taken over
omnihvd -m MODULE [ARGUMENTS]   the same for a module
omnihvd check [--settings]      what was found, what is hooked, and what to do about gaps
omnihvd aggregator --bind HOST:PORT   a dedicated aggregator
omnihvd kernels [--arch sm_90]        compile the GPU kernels ahead
omnihvd bench [--help]          measure it beside its peers
omnihvd stats                   what the names in omnihvd.stats() mean
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

COMMANDS = {
    "check": "omnihvd.check.command",
    "aggregator": "omnihvd.aggregator",
    "kernels": "omnihvd.kernel_cache",
    "bench": "omnihvd.bench.command",
    "stats": "omnihvd.statistics",
}


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return 0 if arguments else 2
    if arguments[0] in COMMANDS:
        status = importlib.import_module(COMMANDS[arguments[0]]).main(arguments[1:])
        return int(status or 0)
    return run(arguments)


def run(arguments: list[str]) -> int:
    """Runs a script or module as `python` would; omnihvd is imported, and so hooked, already."""
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print("omnihvd: -m needs the name of a module", file=sys.stderr)
            return 2
        sys.argv = arguments[1:]
        sys.path[0:1] = [str(Path.cwd())]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    script = Path(arguments[0])
    if not script.is_file():
        print(
            f"omnihvd: {script} is neither a file nor one of {', '.join(COMMANDS)}", file=sys.stderr
        )
        return 2
    sys.argv = arguments
    sys.path[0:1] = [str(script.resolve().parent)]
    runpy.run_path(str(script), run_name="__main__")
    return 0
