"""The report as one HTML page that needs nothing else: plots are inside, as SVG."""

from __future__ import annotations

import html as _html
from typing import Any

from omnihvd.report import plots
from omnihvd.report.predictions import bytes_text, time_text
from omnihvd.report.tables import BEST, percent, predictions, shares

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em;
       color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; margin: 1em 0 } caption { text-align: left; color: #555 }
th, td { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right }
td { white-space: nowrap }
th:first-child, td:first-child { text-align: left; white-space: normal }
.wide { overflow-x: auto }
.best { font-weight: bold; background: #eef5fb }
.advice { background: #eef5fb; padding: 1em 2em }
svg { max-width: 100%; height: auto }
"""


def html(content: dict[str, Any]) -> str:
    """content: as in report.json. Without matplotlib the page has no plots, and says so."""
    job, timing = content["job"], content["timing"]
    advice = "".join(f"<li>{_text(s[0].upper() + s[1:])}</li>" for s in content["advice"])
    wait = "" if timing["wait"] is None else f", {time_text(timing['wait'])} of it for sums"
    steps = len(content["steps_seen"])
    all_ranks = dict.fromkeys(p["ranks"] for p in content["predictions"])
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'><title>omnihvd: report</title>",
        f"<style>{STYLE}</style><h1>Would OmniReduce pay?</h1>",
        f'<ul class="advice">{advice}</ul>',
        f"<p>{bytes_text(content['bytes'])} of gradients a step, {_text(job['framework'])} "
        f"({_text(job['library'])}, {job['ranks']} rank{'s' * (job['ranks'] > 1)}); a step took "
        f"{time_text(timing['step'])}{wait}; {steps} of {job['steps']} steps were looked at, which "
        f"cost {percent(content['cost_share'])} of the time. The ranks' overlap is "
        f"{_text(content['overlap'])}.</p>",
        "<h2>What a step would take</h2>",
        _plot(plots.steps, content, plots.steps_height(content)),
        *(_table(*predictions(content, n)) for n in all_ranks),
        "<p>*: the fastest that needs neither loss nor more hosts, or the first that is as fast by "
        "1%.</p>",
        "<h2>How much of it is not zero</h2>",
        _plot(plots.densities, content),
        _parameters(content),
        _buffers(content),
        "<h2>Block size</h2>",
        _blocks(content),
        "<h2>How it develops</h2>",
        _plot(plots.development, content),
        "<p>The formulas: <code>omnihvd/report/costs.py</code>. One rank a host; links have the "
        "same rate in both directions. Compressors: what they do to convergence is not told "
        "here.</p>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    pieces = _html.escape(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))


def _table(caption: str, header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><caption>{_text(caption)}</caption><tr>{head}</tr>{body}</table>"
    return f"<div class=wide>{table}</div>"


def _cell(text: str) -> str:
    return f"<td{' class=best' * text.startswith(BEST)}>{_text(text)}</td>"


def _parameters(content: dict[str, Any]) -> str:
    header = ["parameter", "shape", "size", "elements", "blocks of 256"]
    header += [f"any of {content['of_ranks']} ranks", "zero rows", "fullest rank", "fullest part"]
    rows = [
        [
            p["name"],
            " x ".join(map(str, p["shape"])),
            *shares(p),
            f"{p['rank_skew']:.2f}",
            f"{p['part_skew']:.2f}",
        ]
        for p in sorted(content["parameters"], key=lambda p: -p["bytes"])
    ]
    caption = (
        "By parameter: the share of elements and of blocks that is not zero on a rank; of blocks "
        "on any; how many times as full as the mean the fullest rank is, for which all others "
        "wait, and the fullest of 16 equal parts"
    )
    return _table(caption, header, rows)


def _buffers(content: dict[str, Any]) -> str:
    rows = [
        [
            _first_of(b["parameters"]),
            bytes_text(b["bytes"]),
            time_text(b["ready_s"]),
            percent(b["density"]["256"]),
            percent(b["union"]["256"]),
        ]
        for b in content["buffers"]
    ]
    header = [
        "buffer",
        "size",
        "ready after",
        "blocks of 256",
        f"any of {content['of_ranks']} ranks",
    ]
    return _table("By fused buffer or bucket, as gradients become ready", header, rows)


def _first_of(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _blocks(content: dict[str, Any]) -> str:
    sizes = content["block_sizes"]
    rows = [["sent by a rank", *map(bytes_text, sizes["sent"].values())]]
    caption = f"OmniReduce, {content['of_ranks']} ranks; OMNIHVD_BLOCK_SIZE={sizes['best']}"
    return _table(caption, ["elements of a block", *sizes["sent"]], rows)


def _plot(draw: Any, content: dict[str, Any], height: float = 3.6) -> str:
    try:
        return plots.svg(draw, content, height)
    except ImportError:
        return "<p>(plots need matplotlib: <code>pip install matplotlib</code>)</p>"
    except OSError as why:  # matplotlib has no folder to write to
        return f"<p>(no plots: {_text(str(why))})</p>"
