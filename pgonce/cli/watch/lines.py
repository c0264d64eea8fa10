"""
Make lines of a screen from text that came from outside.

Pure: runs in ``pgonce watch``. Invariant: nothing in such text makes the terminal obey, hide anything or begin a new
line, and a cell is exactly as wide as it was asked for. A part of a line has a role, never a colour: the screen decides
what a role looks like.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, set_cell_size

from pgonce.offsets_store.log_lines import one_line

Role = Literal["", "bold", "dim", "bad", "warn", "good", "head", "cursor"]
Cut = Literal["start", "middle", "end"]
Part = tuple[str, Role]
Line = tuple[Part, ...]


@dataclass(frozen=True)
class Marks:
    """The signs that are not letters: in Unicode, or in ASCII only."""

    ascii_only: bool = False

    @property
    def dots(self) -> str:
        """What stands where text was cut."""
        return ".." if self.ascii_only else "…"

    @property
    def rule(self) -> str:
        """What a line across the screen is made of."""
        return "-" if self.ascii_only else "─"

    def clean(self, text: str) -> str:
        """``text`` without what a terminal obeys; in ASCII, with escapes for all other letters."""
        text = one_line(text)
        return text.encode("ascii", "backslashreplace").decode("ascii") if self.ascii_only else text

    def fit(self, text: str, width: int, *, right: bool = False, cut: Cut = "end") -> str:
        """
        ``text`` in exactly ``width`` cells: padded, or ``cut`` where it may be.

        >>> Marks().fit("orders", 8), Marks().fit("12", 4, right=True), Marks().fit("public.orders", 8, cut="start")
        ('orders  ', '  12', '….orders')
        """
        text = self.clean(text)
        if cell_len(text) > width:
            text = self._cut(text, width, cut)
        space = " " * (width - cell_len(text))
        return space + text if right else text + space

    def _cut(self, text: str, width: int, cut: Cut) -> str:
        kept = width - cell_len(self.dots)
        if kept <= 0:
            return set_cell_size(text, max(width, 0))
        end = {"end": 0, "middle": kept // 2, "start": kept}[cut]
        head = set_cell_size(text, kept - end).rstrip()
        tail = set_cell_size(text[::-1], end)[::-1].lstrip() if end else ""
        return head + self.dots + tail


def is_ascii_only(environment: Mapping[str, str] = os.environ) -> bool:
    """
    Whether the locale says that the terminal does not know UTF-8.

    Python itself sets ``LC_CTYPE=C.UTF-8`` where there is no other locale, so that value alone says nothing.
    """
    said = environment.get("LC_ALL") or ""
    if not said:
        said = environment.get("LC_CTYPE") or ""
        if not said or said == "C.UTF-8":
            said = environment.get("LANG") or ""
    return "utf" not in said.lower()


def width_of(line: Sequence[Part]) -> int:
    """How many cells a line takes."""
    return sum(cell_len(text) for text, _ in line)


def clipped(line: Line, width: int, marks: Marks) -> Line:
    """The line, cut where the screen ends."""
    if width_of(line) <= width:
        return line
    kept: list[Part] = []
    for text, role in line:
        room = width - width_of(kept)
        if cell_len(text) > room:
            return (*kept, (marks.fit(text, room), role))
        kept.append((text, role))
    return tuple(kept)


def wrapped(text: str, width: int, marks: Marks, *, indent: str = "", role: Role = "") -> list[Line]:
    """``text`` in lines of at most ``width`` cells, broken between words where there are any; it keeps its indent."""
    lines: list[Line] = []
    indent += " " * (len(text) - len(text.lstrip(" ")))
    current = ""
    room = max(width - len(indent), 1)
    for whole in marks.clean(text).split(" "):
        word = whole
        while word:
            joined = f"{current} {word}" if current else word
            if cell_len(joined) <= room:
                current, word = joined, ""
            elif current:
                lines.append(((indent + current, role),))
                current = ""
            else:
                # One word that is longer than a line, such as a path.
                head = set_cell_size(word, room).rstrip() or word[0]
                lines.append(((indent + head, role),))
                word = word[len(head) :]
    # Text without a letter is a line too.
    if current or not lines:
        lines.append(((indent + current if current else "", role),))
    return lines
