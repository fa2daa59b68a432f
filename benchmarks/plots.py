"""Draws the plots of results/ again, from their JSON files; measures nothing.

python benchmarks/plots.py [FILE.json ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
import delay_control  # noqa: E402
import map as the_map  # noqa: E402
import model_steps  # noqa: E402
import papers  # noqa: E402
import scale  # noqa: E402
import soak  # noqa: E402
import sparse  # noqa: E402
import training  # noqa: E402

from benchmarks.bench import plots  # noqa: E402

PROGRAMS = {
    "training": training,
    "sparse": sparse,
    "delay_control": delay_control,
    "papers": papers,
    "papers_workers": papers,
    "scale": scale,
    "soak": soak,
}


def redraw(path: Path) -> list[Path]:
    content = json.loads(path.read_text())
    picture = path.with_suffix(".png")
    if path.stem in PROGRAMS:
        PROGRAMS[path.stem].plot(content, picture)
    elif "parts" in content:
        parts = {name: part["results"] for name, part in content["parts"].items()}
        the_map.plot(parts, picture)
    elif "configuration" in content:
        made = content["configuration"]
        local = made["local"] == "True"
        return plots.plot(content["results"], path.parent, path.stem, made["rate"], local)
    else:
        return []
    return [picture]


def main() -> None:
    named = [Path(word) for word in sys.argv[1:]]
    paths = named or sorted((Path(__file__).parent / "results").glob("*.json"))
    for path in paths:
        for picture in redraw(path):
            print(picture)
    if not named:
        print(model_steps.plot())


if __name__ == "__main__":
    main()
