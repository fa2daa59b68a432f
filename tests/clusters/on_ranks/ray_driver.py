"""Jobs on Ray, on a cluster of three hosts that are all this machine. Prints a line of JSON."""

from __future__ import annotations

import json
import time

import ray
from horovod.ray import ElasticRayExecutor, RayExecutor
from ray.cluster_utils import Cluster
from training import sum_until_one_dies, train, train_elastically

ENVIRONMENT = {
    "OMNIHVD_WAY": "stream",
    "OMP_NUM_THREADS": "1",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "10",  # after which all notice who died
}


def static() -> RayExecutor:
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=3)
    executor.start(extra_env_vars=ENVIRONMENT)
    return executor


def training() -> object:
    executor = static()
    try:
        return executor.run(train)
    finally:
        executor.shutdown()


def a_worker_dies() -> object:
    """Each worker's outcome, and the seconds until all were known."""
    executor = static()
    began = time.monotonic()
    said = []
    for result in executor.run_remote(sum_until_one_dies):
        try:
            ray.get(result, timeout=30)
        except ray.exceptions.RayError as why:
            said.append(str(why))
    executor.shutdown()
    return {"said": said, "seconds": time.monotonic() - began}


def elastic() -> object:
    settings = ElasticRayExecutor.create_settings(
        min_num_proc=3, max_num_proc=3, timeout_s=30, elastic_timeout=30, nics={"lo"}
    )
    settings.min_num_proc = 1  # of what remains
    executor = ElasticRayExecutor(settings, env_vars=ENVIRONMENT)
    executor.start()
    return executor.run(train_elastically)


cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
try:
    for address in ("127.0.0.2", "127.0.0.3"):
        cluster.add_node(num_cpus=1, node_ip_address=address)
    ray.init(address=cluster.address, log_to_driver=False)
    results = {job.__name__: job() for job in (training, a_worker_dies, elastic)}
    ray.shutdown()
finally:
    cluster.shutdown()
print("\n" + json.dumps(results))
