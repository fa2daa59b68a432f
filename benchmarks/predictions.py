"""Are the report's predictions right? Steps measured on shaped links, beside those predicted.

    sudo python benchmarks/predictions.py [--models words recommender cnn] [--rates 200mbit ...]

Each of examples/pytorch_models.py's models is trained by DDP on HOSTS hosts of one rank: once on
links that nothing slows, under --report, whose predictions are kept; then for each rate on Gloo's
ring, and with omnihvd (streaming, which is what is predicted). A step is the median of rank 0's.
Writes results/predictions.json; --models and --rates redo some of it, and keep the rest.
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
from omnihvd.bench.command import machine  # noqa: E402
from omnihvd.bench.lab import Lab  # noqa: E402
from omnihvd.report import command, samples  # noqa: E402

EXAMPLE = ROOT / "examples" / "pytorch_models.py"
RESULT = Path(__file__).parent / "results" / "predictions.json"
HOSTS = 4
MODELS = ("words", "recommender", "cnn")
RATES = ("200mbit", "500mbit", "1gbit")
SCHEMES = {"ring": [], "omnireduce": ["-m", "omnihvd"]}
WARM_UP = 3  # steps not counted
# The launcher's names of rank and size, as torch.distributed's.
RANK = 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec "$@"'


def train(lab: Lab, model: str, under: list[str], steps: int, timeout: float) -> float:
    """Seconds of a step: the median of rank 0's."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        program = [str(EXAMPLE), "--model", model, "--steps", str(steps), "--json", str(output)]
        lab.mpirun(
            ["sh", "-c", RANK, "sh", sys.executable, *under, *program],
            env={
                **{"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
                **{"MASTER_ADDR": lab.hosts[0].address, "MASTER_PORT": "29500"},
                **{"GLOO_SOCKET_IFNAME": "eth0", "OMNIHVD_WAY": "stream", "OMNIHVD_LOG": "error"},
            },
            timeout=timeout,
            stdout=subprocess.DEVNULL,
        )
        return statistics.median(json.loads(output.read_text())[WARM_UP:])


def predict(model: str, rates: list[str], timeout: float) -> dict[tuple[str, str], float]:
    """Steps in seconds, by rate and scheme."""
    with tempfile.TemporaryDirectory() as folder, Lab(HOSTS, rate=None) as lab:
        train(lab, model, ["-m", "omnihvd", "--report", folder], 40, timeout)
        content = command.content_of(samples.load_all([Path(folder)]), rates, [HOSTS])
        return {(p["rate"], p["scheme"]): p["step_s"] for p in content["predictions"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rates", nargs="+", default=list(RATES))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=300, help="seconds, of each run")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    if RESULT.exists():
        results = json.loads(RESULT.read_text())["results"]
    for model in args.models:
        predicted = predict(model, args.rates, args.timeout)
        for rate in args.rates:
            for scheme, under in SCHEMES.items():
                with Lab(HOSTS, rate=rate) as lab:
                    measured = train(lab, model, under, args.steps, args.timeout)
                place = {"model": model, "rate": rate, "scheme": scheme}
                row = {**place, "measured_s": measured, "predicted_s": predicted[rate, scheme]}
                row["off"] = row["predicted_s"] / measured - 1
                results = [r for r in results if not place.items() <= r.items()] + [row]
                print(
                    f"{model:12} {rate:8} {scheme:10} measured {1e3 * measured:7.1f} ms, predicted "
                    f"{1e3 * row['predicted_s']:7.1f} ms: {row['off']:+.1%}",
                    flush=True,
                )
    RESULT.write_text(
        json.dumps({"hosts": HOSTS, "machine": machine(), "results": results}, indent=1)
    )


if __name__ == "__main__":
    main()
