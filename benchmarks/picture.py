"""
Draw the trigger times of the newest runs for docs/performance.md, one picture for each table: `make picture`.

Runs anywhere. Invariant: a bar is the median of all times of one contender, and its whisker reaches from p10 to p90.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from report import figures

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
# Which files of results a picture is drawn from, and its own name.
PICTURES = {
    "2*": "benchmarks.png",
    "kafka-*": "benchmarks-kafka.png",
    "changes-*": "benchmarks-changes.png",
}
OURS, THEIRS = "#336791", "#b8bcc2"


@dataclass(frozen=True)
class Bar:
    """One contender: its name, its time in ms, and how far the whisker reaches."""

    name: str
    middle: float
    least: float
    most: float

    @property
    def colour(self) -> str:
        """Ours and theirs are told apart."""
        return OURS if "pgonce" in self.name or "Postgres" in self.name else THEIRS


def main() -> int:
    """Exit code 0, or 1 if there is no run to draw."""
    mpl.use("Agg")
    drawn = 0
    for pattern, name in PICTURES.items():
        runs = [path for path in sorted(RESULTS.glob(f"{pattern}.json")) if not _run(path).get("small")]
        if runs:
            draw(_run(runs[-1]), DOCS / name)
            sys.stdout.write(f"docs/{name} shows {runs[-1].name}.\n")
            drawn += 1
    if not drawn:
        sys.stderr.write("There is no full run in benchmarks/results: run `make bench` first.\n")
    return 0 if drawn else 1


def draw(run: dict[str, Any], picture: Path) -> None:
    """One panel for each load, the fastest contender at the top."""
    loads = dict(panels(run))
    sizes = [len(bars) for bars in loads.values()]
    figure, drawn = plt.subplots(
        len(loads), figsize=(9, 1.2 + 0.34 * sum(sizes)), height_ratios=sizes, layout="constrained", squeeze=False
    )
    for (title, bars), panel in zip(loads.items(), drawn[:, 0], strict=True):
        bars.sort(key=lambda bar: -bar.middle)
        middles = [bar.middle for bar in bars]
        whiskers = [[bar.middle - bar.least for bar in bars], [bar.most - bar.middle for bar in bars]]
        found = panel.barh(
            [bar.name for bar in bars],
            middles,
            xerr=whiskers,
            color=[bar.colour for bar in bars],
            error_kw={"elinewidth": 0.8},
        )
        panel.bar_label(found, [f"{middle:,.0f} ms" for middle in middles], padding=6, fontsize=8)
        panel.set_title(title, loc="left", fontsize=10)
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


def panels(run: dict[str, Any]) -> Iterator[tuple[str, list[Bar]]]:
    """Each panel's title and bars."""
    for load in run["loads"]:
        found = {name: figures(rounds) for name, rounds in load["trigger_ms"].items()}
        yield f"A batch of {load['name']}", [Bar(name, of.median, of.p10, of.p90) for name, of in found.items()]


def _run(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
