"""On each rank: `omnihvd check --job`, where ranks 1 and 2 have settings of their own."""

from __future__ import annotations

import os
import sys

from omnihvd.cli import main

rank = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["OMNIHVD_SECRET"] = "sixteen characters" + rank * (rank == "1")
os.environ["OMNIHVD_SLOTS"] = "4" if rank == "2" else "8"
sys.exit(main(["check", "--job", "--json"]))
