"""On each rank: `omnihvd check --job`, where ranks 1 and 2 have settings of their own."""

from __future__ import annotations

import os
import sys

rank = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["OMNIHVD_SECRET"] = "sixteen characters" + rank * (rank == "1")
os.environ["OMNIHVD_SLOTS"] = "4" if rank == "2" else "8"

from omnihvd.cli import main  # noqa: E402, as settings are verified at the import

sys.exit(main(["check", "--job", "--json"]))
