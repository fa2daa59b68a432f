"""`omnihvd report FOLDER ...`: makes the report of what ranks have seen."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import IO, Any

from omnihvd.rates import rate
from omnihvd.report import figures, masks, options, page, plots, predictions, samples, tables
from omnihvd.report.predictions import Model
from omnihvd.tools.whole_file import whole_file


def main(arguments: list[str]) -> int:
    p = options.parser(prog="omnihvd report", description=__doc__)
    p.add_argument("folders", nargs="+", type=Path, help="folders with a job's files rank-*.npz")
    p.add_argument("--plot", type=Path, metavar="FILE", help="write a picture: PNG, SVG or PDF")
    p.add_argument("--masks", type=Path, metavar="FILE", help="write which blocks were zero: .npz")
    args = p.parse_args(arguments)
    seen, out = samples.load_all(args.folders), args.folders[0]
    make(seen, out, sys.stdout, args.rates, args.ranks)
    content = json.loads((out / samples.FIGURES).read_text())
    if args.plot:
        plots.picture(content, args.plot)
    if args.masks:
        sizes = {p["name"]: math.prod(p["shape"]) for p in content["parameters"]}
        masks.export(seen, sizes, args.masks)
    return 0


def make(
    seen: list[samples.Seen],
    out: Path,
    terminal: IO[str],
    rates: list[str] | None = None,
    ranks: list[int] | None = None,
) -> Path:
    """Writes report.json and report.html to `out`, and a table to the terminal. Returns the page's
    path. Raises ValueError for an invalid rate, OSError that names the file."""
    content = content_of(seen, rates, ranks)
    path = out / samples.PAGE
    for file, text in (
        (out / samples.FIGURES, json.dumps(content, indent=1) + "\n"),
        (path, page.html(content)),
    ):
        with whole_file(file) as written:
            written.write(text.encode())
    tables.show(content, path, terminal)
    return path


def content_of(
    seen: list[samples.Seen], rates: list[str] | None = None, ranks: list[int] | None = None
) -> dict[str, Any]:
    """The content of report.json; the page is made from it."""
    rates = [rate(text) for text in rates or options.DEFAULT_RATES]
    ranks = ranks or options.DEFAULT_RANKS
    if min(ranks) < 2:
        raise ValueError(f"--ranks {min(ranks)}: a sum has at least two ranks")
    job = seen[0].job
    parameters = figures.measured(seen)
    buffers = figures.job_buffers(seen, parameters)
    timing = figures.timing(seen)
    world = job.ranks if job.ranks > 1 else ranks[0]
    copied = figures.copied_bytes(seen, buffers)
    models = [Model(buffers, timing, n, copied=copied) for n in ranks]
    advised = min(models, key=lambda model: abs(model.ranks - world))
    best, by_size = predictions.best_block_size(parameters, world)
    predicted = [
        model.predict(scheme, link)._asdict()
        for model in models
        for link in rates
        for scheme in predictions.schemes_for(parameters)
    ]
    return {
        "job": {k: v for k, v in vars(job).items() if k not in ("shapes", "timings", "widths")},
        "ranks_seen": len(seen),
        "steps_seen": sorted({s.step for one in seen for s in one.samples}),
        "overlap": _overlap(seen, parameters),
        "of_ranks": world,
        "timing": {**vars(timing), "alone": timing.alone},
        "cost_share": max(one.job.cost_share for one in seen),
        "bytes": sum(p.bytes for p in parameters),
        "total": figures.total(parameters, world),
        "parameters": [figures.summary_of(p, world) for p in parameters],
        "buffers": [_buffer(buffer, world) for buffer in buffers],
        "development": figures.development(parameters),
        "block_sizes": {"best": best, "sent": {str(b): n for b, n in by_size.items()}},
        "predictions": predicted,
        "advised_ranks": advised.ranks,
        "advice": [predictions.advice(advised, parameters, link) for link in rates],
    }


def _overlap(seen: list[samples.Seen], parameters: list[figures.Measured]) -> str:
    job = seen[0].job
    if any(p.steps_of_all for p in parameters):
        return f"measured between {job.ranks} ranks; for other numbers of ranks estimated"
    if job.ranks == 1:
        return "estimated from batches of one process, as if each were another rank's"
    return (
        f"estimated from batches: of {job.ranks} ranks {len(seen)} were seen (where hosts share no "
        "folder, copy all rank-*.npz into one, and run `omnihvd report` on it)"
    )


def _buffer(buffer: list[figures.Measured], world: int) -> dict[str, Any]:
    return {
        "parameters": [p.name for p in buffer],
        "bytes": sum(p.bytes for p in buffer),
        "ready_s": max(p.ready_s for p in buffer),
        **figures.total(buffer, world),
    }
