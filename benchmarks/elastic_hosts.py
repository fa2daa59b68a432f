"""horovodrun for an elastic job of three ranks: this machine is three hosts to Horovod."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

HOSTS = ("localhost", "127.0.0.1", socket.gethostname())
QUICK = Path(__file__).resolve().parents[1] / "tests" / "quick_horovodrun.py"
OPTIONS = (
    *("-np", "3", "--min-np", "1", "--max-np", "3", "--network-interface", "lo"),
    *("--blacklist-cooldown-range", "1", "2"),  # else a host does not come back
)


def launcher(folder: Path) -> list[str]:
    """The words before the program's. Writes the script that lists the hosts into the folder."""
    discover = folder / "discover"
    discover.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in HOSTS))
    discover.chmod(0o700)
    return [sys.executable, str(QUICK), *OPTIONS, "--host-discovery-script", str(discover)]
