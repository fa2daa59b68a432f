"""A job on a local Spark of two workers, in each way of argv: mpi, gloo. Prints a line of JSON."""

from __future__ import annotations

import json
import os
import sys

import horovod.spark
from pyspark.sql import SparkSession
from training import train


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the workers
    local = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = local.config("spark.driver.host", "localhost").getOrCreate()
    env = {**os.environ, "OPAL_PREFIX": sys.prefix}  # Open MPI's wheel lies there
    ways = sys.argv[1:]
    results = {
        way: horovod.spark.run(train, num_proc=2, env=env, start_timeout=60, **{f"use_{way}": True})
        for way in ways
    }
    session.stop()
    print("\n" + json.dumps(results))


if __name__ == "__main__":  # Horovod starts processes that import this file
    main()
