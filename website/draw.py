"""
Draw docs/pictures/*.svg from the texts next to them; ``make docs`` does so.

A text has one element a line, drawn from top to bottom:

    lanes Spark | pgonce | Postgres     who takes part, once at the top
    Spark > pgonce: rows                an arrow between lanes, with what is said
    pgonce: decides                     a box on a lane
    frame one transaction ... end       a frame around what stands between the two lines
    ticks 100 110 120                   an axis of offsets, once at the top
    bar 100 110 good: batch 6           a stretch of the axis: good, bad or plain
    and 110 120 bad: batch 7            the same, in the row of the one before
    note some words                     a line of text over the whole width

Pure. Invariant: a picture is as wide as a phone, its text stays text, and its colours follow the page or the reader's
system.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
_WIDTH = 360
_MARGIN = 6
_LINE = 16
# A little more than the mean letter of the widest usual typeface at 13 pixels.
_LETTER = 7.0
_STYLE = """\
.drawn { color: #1f2328; background: #fff; font: 13px system-ui, sans-serif; --paper: #fff }
@media (prefers-color-scheme: dark) { .drawn { color: #e6edf3; background: #0d1117; --paper: #0d1117 } }
.drawn text { fill: currentColor; text-anchor: middle }
.drawn .left { text-anchor: start }
.drawn .strong { font-weight: 600 }
.drawn line, .drawn path { stroke: currentColor; fill: none }
.drawn .lane { stroke-opacity: .2 }
.drawn .head { fill: currentColor }
.drawn rect { fill: #8886; fill-opacity: .25; stroke: currentColor; stroke-opacity: .5 }
.drawn .paper { fill: var(--paper); fill-opacity: 1; stroke: none }
.drawn .good { fill: #2da44e; stroke: #2da44e; stroke-opacity: 1 }
.drawn .bad { fill: #cf222e; stroke: #cf222e; stroke-opacity: 1; stroke-dasharray: 4 3 }
.drawn .frame { fill: #218bff; fill-opacity: .08; stroke: #218bff; stroke-opacity: 1 }"""


@dataclass
class Picture:
    """A picture that is being drawn; ``y`` is where the next element begins."""

    lanes: dict[str, float] = field(default_factory=dict)
    ticks: list[float] = field(default_factory=list)
    y: float = 4
    row: tuple[float, float] = (0, 0)
    frames: list[float] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)

    def text(self, x: float, lines: list[str], kind: str = "") -> None:
        """Write lines at ``y``, and move it below them."""
        for line in lines:
            self.y += _LINE
            self.drawn.append(
                f'<text x="{x:g}" y="{self.y - 4:g}"{kind and f" class={chr(34)}{kind}{chr(34)}"}>{escape(line)}</text>'
            )

    def boxed(self, left: float, right: float, text: str, kind: str = "") -> None:
        """Draw a box with text in it at ``y``, and move it below the box."""
        top, lines = self.y, _wrapped(text, right - left - 8)
        self.y += 4
        self.text((left + right) / 2, lines)
        self.y += 5
        shape = f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{self.y - top:g}" rx="4"'
        at = len(self.drawn) - len(lines)
        self.drawn[at:at] = [f'{shape} class="paper"/>', f"{shape}{kind and f' class={chr(34)}{kind}{chr(34)}'}/>"]

    def arrow(self, start: float, end: float, text: str) -> None:
        """Draw an arrow below its text."""
        self.text((start + end) / 2, _wrapped(text, abs(end - start) - 8))
        self.y += 6
        back = 7 if end < start else -7
        self.drawn.append(f'<line x1="{start:g}" x2="{end:g}" y1="{self.y:g}" y2="{self.y:g}"/>')
        self.drawn.append(f'<path class="head" d="M{end:g} {self.y:g}l{back} -4v8z"/>')
        self.y += 8

    def place(self, tick: float) -> float:
        """Where an offset lies from left to right."""
        first, last = self.ticks[0], self.ticks[-1]
        return 16 + (tick - first) / (last - first) * (_WIDTH - 32)

    def element(self, line: str) -> None:
        """Draw what a line of the text says."""
        word, _, rest = line.partition(" ")
        if word == "lanes":
            names = [name.strip() for name in rest.split("|")]
            self.lanes = {name: (place + 0.5) * _WIDTH / len(names) for place, name in enumerate(names)}
            for name, x in self.lanes.items():
                self.y = 4
                self.text(x, [name], "strong")
            self.y += 6
        elif word == "frame":
            self.frames.append(self.y)
            self.y += 2
            # The lanes run behind it.
            size = f'width="{len(rest) * (_LETTER + 1):g}" height="{_LINE}"'
            self.drawn.append(f'<rect class="paper" x="{_MARGIN + 4}" y="{self.y + 1:g}" {size}/>')
            self.text(_MARGIN + 6, [rest], "left strong")
            self.y += 4
        elif word == "end":
            top = self.frames.pop()
            shape = f'<rect class="frame" x="{_MARGIN}" y="{top:g}" width="{_WIDTH - 2 * _MARGIN}"'
            self.behind.append(f'{shape} height="{self.y + 2 - top:g}" rx="6"/>')
            self.y += 12
        elif word == "ticks":
            self.ticks = [float(one) for one in rest.split()]
            for tick in self.ticks:
                self.y = 4
                self.text(self.place(tick), [f"{tick:g}"])
            self.y += 4
        elif word in {"bar", "and"}:
            (said, text) = rest.split(": ", 1)
            first, last, kind = said.split()
            end = 0.0
            if word == "and":
                self.y, end = self.row
            top = self.y
            self.boxed(self.place(float(first)) + 1, self.place(float(last)) - 1, text, kind)
            self.row = (top, max(end, self.y + 6))
            self.y = self.row[1]
        elif word == "note":
            self.text(_MARGIN + 6, _wrapped(rest, _WIDTH - 24), "left")
            self.y += 8
        else:
            self.said(line)

    def said(self, line: str) -> None:
        """Draw an arrow, or a box on a lane."""
        where, text = line.split(": ", 1)
        start, _, end = where.partition(" > ")
        if end:
            self.arrow(self.lanes[start], self.lanes[end], text)
            return
        x, half = self.lanes[start], _WIDTH / len(self.lanes) / 2 + 22
        self.boxed(max(x - half, 10), min(x + half, _WIDTH - 10), text)
        self.y += 8


def _wrapped(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, max(8, int(width / _LETTER)), break_long_words=False)


def svg_of(text: str) -> str:
    """The picture that a text describes."""
    picture = Picture()
    for line in filter(None, map(str.strip, text.splitlines())):
        picture.element(line)
    lanes = [f'<line class="lane" x1="{x:g}" x2="{x:g}" y1="24" y2="{picture.y:g}"/>' for x in picture.lanes.values()]
    ticks = [picture.place(tick) for tick in picture.ticks]
    lanes += [f'<line class="lane" x1="{x:g}" x2="{x:g}" y1="22" y2="{picture.y:g}"/>' for x in ticks]
    head = f'<svg class="drawn" viewBox="0 0 {_WIDTH} {picture.y + 4:g}" xmlns="http://www.w3.org/2000/svg">'
    return "\n".join([head, f"<style>\n{_STYLE}\n</style>", *lanes, *picture.behind, *picture.drawn, "</svg>\n"])


if __name__ == "__main__":
    for path in sorted(PICTURES.glob("*.txt")):
        try:
            path.with_suffix(".svg").write_text(svg_of(path.read_text()))
        except (KeyError, ValueError) as error:
            sys.exit(f"{path}: {error!r}")
