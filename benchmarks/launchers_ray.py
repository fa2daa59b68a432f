"""The driver of launchers.py's job on Ray. argv: how many hosts, a script, its arguments."""

from __future__ import annotations

import runpy
import sys

import ray
from horovod.ray import RayExecutor

HOSTS, COMMAND = int(sys.argv[1]), sys.argv[2:]


def train() -> None:
    sys.argv = COMMAND
    runpy.run_path(COMMAND[0], run_name="__main__")


ray.init(address="auto", log_to_driver=False)
executor = RayExecutor(
    RayExecutor.create_settings(timeout_s=120), num_hosts=HOSTS, num_workers_per_host=1
)
executor.start()
executor.run(train)
executor.shutdown()
