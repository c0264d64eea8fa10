"""
Draw the figures of the newest run of `make bench` for the docs: `make picture`.

Runs anywhere. Invariant: a bar is the median of all times of one sink, and the whisker reaches from p10 to p90.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from report import figures

RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).parents[1] / "docs" / "benchmarks.png"
OURS, THEIRS = "#336791", "#b8bcc2"


def main() -> int:
    """Exit code 0, or 1 if there is no run to draw."""
    runs = sorted(path for path in RESULTS.glob("2*.json") if not json.loads(path.read_text())["small"])
    if not runs:
        sys.stderr.write("There is no full run in benchmarks/results: run `make bench` first.\n")
        return 1
    draw(json.loads(runs[-1].read_text()), PICTURE)
    sys.stdout.write(f"{PICTURE} shows {runs[-1].name}.\n")
    return 0


def draw(run: dict[str, Any], picture: Path) -> None:
    """One panel for each load, fastest sink first."""
    mpl.use("Agg")
    loads = run["loads"]
    sizes = [len(load["trigger_ms"]) for load in loads]
    figure, panels = plt.subplots(
        len(loads), figsize=(9, 1.2 + 0.34 * sum(sizes)), height_ratios=sizes, layout="constrained"
    )
    for load, panel in zip(loads, panels, strict=True):
        found = {name: figures(rounds) for name, rounds in load["trigger_ms"].items()}
        names = sorted(found, key=lambda name: -found[name].median)
        middles = [found[name].median for name in names]
        whiskers = [
            [found[name].median - found[name].p10 for name in names],
            [found[name].p90 - found[name].median for name in names],
        ]
        colours = [OURS if "pgonce" in name or "Postgres" in name else THEIRS for name in names]
        bars = panel.barh(names, middles, xerr=whiskers, color=colours, error_kw={"elinewidth": 0.8})
        panel.bar_label(bars, [f"{middle:,.0f} ms" for middle in middles], padding=6, fontsize=8)
        panel.set_title(f"A batch of {load['name']}", loc="left", fontsize=10)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.12)
    about = run["about"]
    figure.suptitle(
        f"Trigger times, median with p10 and p90: {about['cores']} cores, PySpark {about['pyspark']}, Postgres "
        f"{about['postgres'].split()[0]}, commit {about['commit']}",
        fontsize=9,
    )
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
