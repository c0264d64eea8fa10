"""
The screen of ``pgonce watch``: keys and pictures come in, lines go out.

Runs in a terminal, by Textual, which repaints only what has changed. Invariant: all that is seen follows from the view
and the last picture; where there is no newer picture, the last one stays, and the screen says since when and why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from pgonce.offsets_store.status.figures import duration_text
from pgonce.offsets_store.status.states import STATES, QueryState

from .lines import Line, Marks, Role, wrapped
from .poller import Outage, Picture, Poller, Reader
from .query_list import columns_for, finding_lines, header_line, list_lines, role_of, summary
from .query_page import query_page
from .view import Effect, Key, Page, View, key_of, listed, pressed, settled

Examine = Callable[[str, "str | None"], Sequence[str]]
"""What ``pgonce doctor`` says of a query and sink, in lines."""

# Names of the terminal's own colours, so that its theme decides what they are.
STYLES: dict[Role, Style] = {
    "": Style(),
    "bold": Style(bold=True),
    "dim": Style(dim=True),
    "bad": Style(color="red", bold=True),
    "warn": Style(color="yellow"),
    "good": Style(color="green"),
    "head": Style(bold=True, underline=True),
    "cursor": Style(reverse=True),
}
"""How the parts of a line look."""
_KEYS = {
    "Enter": "open the query under the cursor: its failures, locks, offsets, dead letters and batches",
    "Esc": "back; in the list: take the filter away",
    "d": "doctor: compare the query's checkpoint with the ledger",
    "/": "filter by words of name, sink, id or state; Enter keeps the filter",
    "s": "sort by the next column, as `pgonce status --sort` does: the line below says by which",
    "r": "read the ledger now",
    "?": "this page",
    "q": "quit",
    "arrows": "move, and so do PgUp, PgDn, Home and End",
}
_HINTS = {
    Page.LIST: "Enter open  / filter  s sort  d doctor  r refresh  ? help  q quit",
    Page.QUERY: "Esc back  d doctor  r refresh  ? help  q quit",
    Page.DOCTOR: "Esc back  q quit",
    Page.HELP: "Esc back  q quit",
}
_SHORT_HINTS = "Enter  / filter  s sort  ? help  q quit"
# Without an answer for this many looks, the picture counts as old.
_LATE = 3
_MOST_OF_OUTAGE = 3
_WORDS = 12


def _clock(when: datetime) -> str:
    return f"{when.astimezone():%H:%M:%S}"


class Told(Message):
    """The poller has a picture, or says why it has none."""

    def __init__(self, what: Picture | Outage) -> None:
        super().__init__()
        self.what = what


class Examined(Message):
    """``pgonce doctor`` has said what it thinks of a query."""

    def __init__(self, of: Key, lines: Sequence[str]) -> None:
        super().__init__()
        self.of, self.lines = of, lines


class _Canvas(Widget):
    """All of the screen."""

    def render_line(self, y: int) -> Strip:
        app = self.app
        assert isinstance(app, WatchApp)  # noqa: S101 (no other has a canvas)
        return app.strip_of(y)


class WatchApp(App[None]):
    """
    The program of ``pgonce watch``.

    :param reader: has looked once already, so that a url that cannot work is said before the screen opens.
    :param place: where the ledger is, for the first line.
    :param examine: what ``pgonce doctor`` says; it runs in a thread.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen, _Canvas { background: ansi_default; } _Canvas { width: 1fr; height: 1fr; }"
    BINDINGS: ClassVar = [Binding("ctrl+c", "quit", priority=True)]

    def __init__(
        self, reader: Reader, first: Picture, *, place: str, every: float, examine: Examine, marks: Marks
    ) -> None:
        super().__init__(ansi_color=True)
        self.picture, self.view = first, View()
        self.outage: Outage | None = None
        self._place, self._every, self._examine, self._marks = place, every, examine, marks
        self._diagnosis: tuple[Key | None, Sequence[str]] | None = None
        self.lines: list[Line] = []
        self._rows: list[QueryState] = []
        self._room, self._length = 1, 0
        self._poller = Poller(reader, every, lambda what: self.post_message(Told(what)))

    def compose(self) -> ComposeResult:
        """One widget draws everything."""
        yield _Canvas()

    def on_mount(self) -> None:
        """Begin to look."""
        self._poller.start()
        self.set_interval(1, self._draw)

    def on_unmount(self) -> None:
        """Look no more."""
        self._poller.stop()

    def on_resize(self) -> None:
        """Draw what fits now."""
        self._draw()

    def on_told(self, told: Told) -> None:
        """Show a new picture, or why there is none."""
        if isinstance(told.what, Outage):
            self.outage = told.what
        else:
            self.picture, self.outage = told.what, None
        self._draw()

    def on_examined(self, examined: Examined) -> None:
        """Show what doctor says."""
        self._diagnosis = (examined.of, examined.lines)
        self._draw()

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted is typed into the filter; elsewhere it is dropped, because letters there are commands."""
        if self.view.is_typing:
            for character in event.text:
                self._press(character, character)

    def on_key(self, event: events.Key) -> None:
        """Do what the key says."""
        event.stop()
        self._press(event.key, event.character)

    def _press(self, key: str, character: str | None) -> None:
        self.view, effect = pressed(self.view, key, character, self._rows, self._room, self._length)
        if effect is Effect.QUIT:
            self.exit()
        elif effect is Effect.REFRESH:
            self._poller.look_now(self.view.cursor if Page.QUERY in self.view.pages else None)
        elif effect is Effect.EXAMINE and self.view.cursor:
            self._diagnosis = None
            threading.Thread(target=self._ask_doctor, args=(self.view.cursor,), daemon=True).start()
        self._draw()

    def _ask_doctor(self, of: Key) -> None:
        self.post_message(Examined(of, self._examine(*of)))

    def _draw(self) -> None:
        """Make all lines, and have those painted that are not on the screen yet."""
        width, height = self.size
        lines = self.all_lines(width, height, datetime.now(timezone.utc))
        lines = (lines + [()] * height)[:height]
        old, self.lines = self.lines, lines
        canvas = self.query_one(_Canvas)
        if len(old) != len(lines):
            canvas.refresh()
            return
        changed = [Region(0, place, width, 1) for place, line in enumerate(lines) if line != old[place]]
        if changed:
            canvas.refresh(*changed)

    def all_lines(self, width: int, height: int, shown_at: datetime) -> list[Line]:
        """The whole screen, if it has this size and is shown at this time."""
        now = self.picture.taken_at
        self._rows = listed(self.picture.queries, self.view)
        top = [self._first_line(width), *self._outage_lines(width, shown_at)]
        if self.view.page is Page.LIST:
            living = listed(self.picture.queries, View())
            columns = columns_for(living, width, self._marks)
            top += [
                ((self._marks.fit(summary(living), width), "bold"),),
                *finding_lines(self.picture.findings, now, width, height, self._marks),
                (),
                header_line(columns, width, self._marks),
            ]
            self._room = max(height - len(top) - 1, 1)
            self.view = settled(self.view, self._rows, self._room)
            body = list_lines(self._rows, self.picture.activity, now, self.view, columns, self._room, self._marks)
            if not self._rows:
                body = [((f"  {self._why_empty(living)}", "dim"),)]
        else:
            text = self._text_lines(width)
            self._room, self._length = max(height - len(top) - 2, 1), len(text)
            top.append(())
            body = text[self.view.scroll : self.view.scroll + self._room]
        body += [()] * (height - len(top) - len(body) - 1)
        return [*top, *body, self._last_line(width)]

    def _why_empty(self, living: Sequence[QueryState]) -> str:
        if living:
            words = self._marks.clean(self.view.filter)
            return f"None of the {len(living)} queries has '{words}' in its name, sink, id or state."
        return "No streaming query is in the ledger yet."

    def _first_line(self, width: int) -> Line:
        clock = f"{_clock(self.picture.taken_at)}  every {self._every:g} s"
        return (
            ("pgonce watch  ", "bold"),
            (self._marks.fit(self._place, max(width - 14 - len(clock) - 2, 0)), ""),
            (f"  {clock}", "dim"),
        )

    def _outage_lines(self, width: int, now: datetime) -> list[Line]:
        old = (now - self.picture.taken_at).total_seconds()
        why = ""
        if self.outage is not None:
            ago = duration_text((now - self.outage.since).total_seconds())
            said, why = f"No answer since {_clock(self.outage.since)} ({ago} ago).", self.outage.why
        elif old > _LATE * self._every + 1:
            said = f"Postgres has not answered for {duration_text(old)}."
        else:
            return []
        said += f" This is the picture of {_clock(self.picture.taken_at)}."
        # libpq says the same of each address of a host, and the list is to stay nearly where it is.
        whole = [*wrapped(said, width, self._marks, role="bad"), *wrapped(why, width, self._marks, role="bad")]
        return whole[:_MOST_OF_OUTAGE] if why else whole[:1]

    def _text_lines(self, width: int) -> list[Line]:
        key = self.view.cursor
        if self.view.page is Page.QUERY and key is not None:
            found = next((query for query in self.picture.queries if key_of(query) == key), None)
            known = self.picture.known if self.picture.known_of == key else None
            course = self.picture.activity.get(key, ())
            return query_page(found, known, self.picture.findings, course, self.picture.taken_at, width, self._marks)
        if self.view.page is Page.DOCTOR:
            if self._diagnosis is None or self._diagnosis[0] != key:
                return [(("Comparing the checkpoint with the ledger ...", "dim"),)]
            return [line for said in self._diagnosis[1] for line in wrapped(said, width, self._marks)]
        return [
            (("Keys", "head"),),
            *(line for key, meaning in _KEYS.items() for line in self._explained(key, "bold", meaning, width)),
            (),
            (("States", "head"),),
            *(line for name, says in STATES.items() for line in self._explained(name, role_of(name), says, width)),
        ]

    def _explained(self, word: str, role: Role, meaning: str, width: int) -> list[Line]:
        first, *rest = wrapped(meaning, width - _WORDS, self._marks)
        return [((f"  {word:<{_WORDS - 2}}", role), *first), *(((" " * _WORDS, ""), *line) for line in rest)]

    def _last_line(self, width: int) -> Line:
        if self.view.is_typing:
            return (("Filter: ", "bold"), (self._marks.clean(self.view.filter), ""), (" ", "cursor"))
        if self.view.page is not Page.LIST:
            more = f"{min(self.view.scroll + self._room, self._length)} of {self._length} lines  "
            return ((more if self._length > self._room else "", ""), (_HINTS[self.view.page], "dim"))
        begin = self.view.top + 1 if self._rows else 0
        seen = f"{begin}-{min(self.view.top + self._room, len(self._rows))} of {len(self._rows)}"
        filtered = f"  filter: {self.view.filter}" if self.view.filter else ""
        state = f"{seen}  by {self.view.order.value}{self._marks.clean(filtered)}  "
        is_long = cell_len(state) + len(_HINTS[Page.LIST]) > width
        return ((state, ""), (_SHORT_HINTS if is_long else _HINTS[Page.LIST], "dim"))

    def strip_of(self, place: int) -> Strip:
        """One line, as Textual paints it; never wider than the screen."""
        line = self.lines[place] if place < len(self.lines) else ()
        return Strip([Segment(text, STYLES[role]) for text, role in line if text]).adjust_cell_length(self.size.width)
