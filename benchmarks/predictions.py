"""Checks the report's predictions: measured steps on shaped links, beside the predicted ones.

    sudo python benchmarks/predictions.py [--models words recommender cnn] [--rates 200mbit ...]

DDP trains each model of examples/pytorch_models.py on HOSTS hosts of one rank: once on unshaped
links, under --report, to predict steps; then for each rate on Gloo's ring, and with omnihvd
(streaming, as predicted). A step is the median of rank 0's. The report assumes hosts that share
nothing, but these share two cores. So their rates, all busy at once, are measured first, by sums of
nothing, of zeros and of a dense tensor on unshaped links. The cost model gets these rates: latency,
scanning, moving, copying. No core is spare. Writes results/predictions.json; --models and --rates
redo some of it, and keep the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine as about_machine  # noqa: E402
from benchmarks.bench.lab import Lab  # noqa: E402
from benchmarks.machines import measured_machine  # noqa: E402
from omnihvd.report import figures, samples  # noqa: E402
from omnihvd.report.costs import Machine  # noqa: E402
from omnihvd.report.predictions import Model  # noqa: E402

EXAMPLE = ROOT / "examples" / "pytorch_models.py"
RESULT = Path(__file__).parent / "results" / "predictions.json"
HOSTS = 4
MODELS = ("words", "recommender", "cnn")
RATES = ("200mbit", "500mbit", "1gbit")
SCHEMES = {"ring": [], "omnireduce": ["-m", "omnihvd"]}
STEPS = {"ring": 10, "omnireduce": 30}  # a ring's are long and alike
WARM_UP = 5  # steps not counted
REPORTED = 50  # steps; the report samples some
# The launcher's names of rank and size, as torch.distributed's.
RANK = 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec "$@"'


# Prints the median seconds of sums of each number of floats, zeros and ones, and of a copy of as
# many. All ranks run at once.
CALIBRATE = """
import json, statistics, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")

def median(work):
    seconds = []
    for _ in range(25):
        dist.barrier()
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[5:])

found = []
for count in map(int, sys.argv[1:]):
    zeros, ones, other = torch.zeros(count), torch.ones(count), torch.ones(count)
    sums = [median(lambda: dist.all_reduce(zeros)), median(lambda: dist.all_reduce(ones))]
    found.append([*sums, median(lambda: other.copy_(ones))])
if dist.get_rank() == 0:
    print(json.dumps(found), flush=True)
dist.destroy_process_group()
"""
SMALL, LARGE = 250_000, 6_250_000  # floats


def run(lab: Lab, words: list[str], timeout: float) -> str:
    """Runs a job and returns rank 0's output."""
    done = lab.mpirun(
        ["sh", "-c", RANK, "sh", sys.executable, *words],
        env={
            **{"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
            **{"MASTER_ADDR": lab.hosts[0].address, "MASTER_PORT": "29500"},
            **{"GLOO_SOCKET_IFNAME": "eth0", "OMNIHVD_WAY": "stream", "OMNIHVD_LOG": "error"},
        },
        timeout=timeout,
        stdout=subprocess.PIPE,
    )
    return str(done.stdout)


def train(lab: Lab, model: str, under: list[str], steps: int, timeout: float) -> float:
    """Seconds of a step: the median of rank 0's."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        program = [str(EXAMPLE), "--model", model, "--steps", str(steps), "--json", str(output)]
        run(lab, [*under, *program], timeout)
        return statistics.median(json.loads(output.read_text())[WARM_UP:])


def calibrate(lab: Lab, scheme: str, folder: Path, timeout: float) -> Machine:
    """The rates of hosts that share this machine's cores, all busy at once."""
    script = folder / "calibrate.py"
    script.write_text(CALIBRATE)
    counts = [1 if scheme == "ring" else SMALL, LARGE]
    said = run(lab, [*SCHEMES[scheme], str(script), *map(str, counts)], timeout)
    (latency, _, _), (zeros, ones, copied) = json.loads(said.splitlines()[-1])
    looks = scheme == "omnireduce"
    return measured_machine(latency, zeros, ones, copied, 4.0 * LARGE, HOSTS, looks)


def predict(model: str, rates: list[str], timeout: float) -> dict[tuple[str, str], float]:
    """Steps in seconds, by rate and scheme."""
    predicted = {}
    with tempfile.TemporaryDirectory() as name, Lab(HOSTS, rate=None, share_cores=True) as lab:
        folder = Path(name)
        train(lab, model, ["-m", "omnihvd", "--report", name], REPORTED, timeout)
        seen = samples.load_all([folder])
        buffers = figures.job_buffers(seen, figures.measured(seen))
        timing, copied = figures.timing(seen), figures.copied_bytes(seen, buffers)
        print(f"{model}: {timing}", flush=True)
        for scheme in SCHEMES:
            machine = calibrate(lab, scheme, folder, timeout)
            m = Model(buffers, timing, HOSTS, machine=machine, copied=copied)
            print(f"{model}, {scheme}: {machine}", flush=True)
            for rate in rates:
                predicted[rate, scheme] = m.predict(scheme, rate).step_s
    return predicted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rates", nargs="+", default=list(RATES))
    parser.add_argument("--timeout", type=float, default=300, help="seconds, of each run")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    if args.output.exists():
        results = json.loads(args.output.read_text())["results"]
    for model in args.models:
        predicted = predict(model, args.rates, args.timeout)
        for rate in args.rates:
            for scheme, under in SCHEMES.items():
                with Lab(HOSTS, rate=rate, share_cores=True) as lab:
                    measured = train(lab, model, under, STEPS[scheme], args.timeout)
                place = {"model": model, "rate": rate, "scheme": scheme}
                row = {**place, "measured_s": measured, "predicted_s": predicted[rate, scheme]}
                row["off"] = row["predicted_s"] / measured - 1
                results = [r for r in results if not place.items() <= r.items()] + [row]
                print(
                    f"{model:12} {rate:8} {scheme:10} measured {1e3 * measured:7.1f} ms, predicted "
                    f"{1e3 * row['predicted_s']:7.1f} ms: {row['off']:+.1%}",
                    flush=True,
                )
                content = {"hosts": HOSTS, "machine": about_machine(), "results": results}
                args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
