"""
Draw the page about one query and sink: what it is doing, its batches, offsets, failures, dead letters and locks.

Pure: runs in ``pgonce watch``. Invariant: what went wrong is followed by what to type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.cells import cell_len

from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.status.details import Blocker, QueryDetails
from pgonce.offsets_store.status.figures import (
    UNKNOWN,
    age_text,
    count_text,
    duration_text,
    rate_text,
    sparkline,
    time_text,
    times_text,
    took_text,
)
from pgonce.offsets_store.status.states import STATES, Finding, QueryState, name_of
from pgonce.offsets_store.status.stored import outcomes

from ..answers.output import json_text, text_of
from .lines import Line, Marks, clipped, wrapped
from .query_list import role_of

_LONGEST_COURSE = 60
_LABELS = 12
_EMPTY: Line = ()


def query_page(
    query: QueryState | None,
    known: QueryDetails | None,
    findings: Sequence[Finding],
    activity: Sequence[float],
    now: datetime,
    width: int,
    marks: Marks,
) -> list[Line]:
    """All lines of the page; the screen shows a part of them."""
    if query is None:
        return [(("This query is not in the ledger any more.", "warn"),)]
    lines = [*_top(query, findings, now, width, marks), *_facts(query, known, activity, now, width, marks)]
    if known is None:
        return [*(clipped(line, width, marks) for line in lines), _EMPTY, (("Reading the ledger ...", "dim"),)]
    page = _Page(query, known, now, width, marks)
    parts = (page.failures(), page.locks(), page.offsets(), page.letters(), page.batches())
    return [clipped(line, width, marks) for line in (*lines, *(line for part in parts for line in part))]


def _top(query: QueryState, findings: Sequence[Finding], now: datetime, width: int, marks: Marks) -> Iterator[Line]:
    since = f" since {time_text(query.state_since, now)}" if query.state_since else ""
    sink = f" into {query.sink_name}" if query.sink_name else ""
    yield (
        (marks.clean(name_of(query)), "bold"),
        (f"{marks.clean(sink)}: ", ""),
        (query.state, role_of(query.state)),
        (since, ""),
    )
    means = STATES.get(query.state, query.state)
    because = f"{means}." if query.because == means else f"{means} ({query.because})."
    yield from wrapped(because[0].upper() + because[1:], width, marks, indent="  ")
    for finding in findings:
        if finding.query_id == query.query_id and finding.sink_name in (None, query.sink_name):
            if finding.finding != query.state:
                what = f"{finding.finding}: {finding.what}."
                yield from wrapped(what[0].upper() + what[1:], width, marks, indent="  ", role="warn")
            to_do = finding.help.replace(query.query_id, query.query_id[:8])
            yield from wrapped(f"To do: {to_do}", width, marks, indent="  ", role="bold")
    yield _EMPTY


def _facts(
    query: QueryState, known: QueryDetails | None, activity: Sequence[float], now: datetime, width: int, marks: Marks
) -> Iterator[Line]:
    old = f", the oldest record is {duration_text(query.lag_seconds)} old" if query.lag_seconds else ""
    course = sparkline(list(activity), min(_LONGEST_COURSE, width - _LABELS - 2), ascii_only=marks.ascii_only)
    facts = {
        "batch": UNKNOWN if query.batch_id is None else str(query.batch_id),
        "published": time_text(query.published_at, now),
        "rows/s": rate_text(query.rows_per_second),
        "last hour": course,
        "lag": count_text(query.lag) + old + _was(query, now),
        "replays": str(query.replays),
        "id": query.query_id,
        "run": query.run_id or UNKNOWN,
        "checkpoint": (known.writer.checkpoint_location if known and known.writer else None) or UNKNOWN,
    }
    for label, value in facts.items():
        first, *rest = wrapped(value, width - _LABELS - 2, marks) if label != "last hour" else [((value, ""),)]
        yield ((f"  {label:<{_LABELS}}", "dim"), *first)
        yield from (((" " * (_LABELS + 2), ""), *line) for line in rest)


def _was(query: QueryState, now: datetime) -> str:
    """The lag that was known last, where it is not known now."""
    if query.lag is not None or query.last_lag is None:
        return ""
    return f" (was {count_text(query.last_lag)} at {time_text(query.lag_measured_at, now)})"


class _Page:
    """The parts below the facts, each with an empty line and a heading before it."""

    def __init__(self, query: QueryState, known: QueryDetails, now: datetime, width: int, marks: Marks) -> None:
        self._query, self._known, self._now, self._width, self._marks = query, known, now, width, marks

    def failures(self) -> Iterator[Line]:
        yield from self._heading("Failures", len(self._known.failures))
        for failure in self._known.failures:
            batch = "" if failure.batch_id is None else f" at batch {failure.batch_id}"
            yield (
                (f"  {self._marks.clean(failure.code)}{batch}", "bad"),
                (f"  {time_text(failure.last_at, self._now)}", ""),
            )
            often = f"{times_text(failure.attempts)} since {time_text(failure.first_at, self._now)}, "
            seen = f"{often if failure.attempts > 1 else ''}seen by the {failure.seen_by}"
            yield from wrapped(seen, self._width, self._marks, indent="    ", role="dim")
            yield from wrapped(failure.message, self._width, self._marks, indent="    ")
            if failure.code.isupper():
                yield self._to_type(f"pgonce explain {in_command(failure.code, 'CODE')}")

    def locks(self) -> Iterator[Line]:
        holders = {blocker.pid: blocker for session in self._known.sessions for blocker in session.blockers}
        if not holders and not self._query.waits_for:
            return
        yield from self._heading("Waits for", len(holders))
        if not holders:
            yield from wrapped(self._query.waits_for or "", self._width, self._marks, indent="  ")
        for holder in holders.values():
            yield from wrapped(self._holder(holder), self._width, self._marks, indent="  ")
            yield self._to_type(f'psql -c "SELECT pg_terminate_backend({holder.pid})"')

    def _holder(self, holder: Blocker) -> str:
        age = f", in a transaction for {age_text(holder.since, self._now)}" if holder.since else ""
        return f"{holder}: {holder.state or 'state unknown'}{age}"

    def batches(self) -> Iterator[Line]:
        yield from self._heading("Newest batches", len(self._known.batches))
        rows = [
            [
                str(batch.batch_id),
                age_text(batch.committed_at, self._now),
                f"{batch.rows:,}".replace(",", " "),
                "" if batch.commit_seconds is None else took_text(batch.commit_seconds),
                str(batch.replays or ""),
                batch.transport,
                ", ".join(
                    [
                        *([f"{batch.dropped_rows} dropped"] if batch.dropped_rows else []),
                        *outcomes(batch.counts),
                    ]
                ),
            ]
            for batch in self._known.batches
        ]
        yield from self._table(
            ("BATCH", "AGE", "ROWS", "TOOK", "REPLAYS", "TRANSPORT", "ROWS BECAME"), rows, left=(5, 6)
        )

    def offsets(self) -> Iterator[Line]:
        places = self._known.partitions
        measured_at = next((at.measured_at for at in places), None)
        when = f", read {time_text(measured_at, self._now)}" if measured_at else ""
        yield from self._heading("Offsets", len(places), when)
        rows = [
            [
                at.topic if at.topic is not None else f"source {text_of(at.source_id)}",
                "-" if at.partition is None else str(at.partition),
                json_text(at.end_offset),
                json_text(at.latest_offset),
                UNKNOWN if at.lag is None else str(at.lag),
            ]
            for at in places
        ]
        yield from self._table(("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"), rows, left=(0,))

    def letters(self) -> Iterator[Line]:
        if not self._known.letters:
            return
        yield from self._heading("Dead letters", self._query.dead_letters)
        rows = [
            [
                str(letter.dead_letter_id),
                age_text(letter.made_at, self._now),
                str(letter.batch_id),
                letter.code,
                letter.column_name or "-",
                letter.message,
            ]
            for letter in self._known.letters
        ]
        yield from self._table(("ID", "AGE", "BATCH", "CODE", "COLUMN", "MESSAGE"), rows, left=(3, 4, 5))
        yield self._to_type(f"pgonce dead-letters {in_command(self._query.query_id, 'QUERY')[:8]}")

    def _heading(self, text: str, count: int, more: str = "") -> Iterator[Line]:
        yield _EMPTY
        yield ((text, "head"), (f"  {count}{more}" if count else "  none", "dim"))

    def _to_type(self, command: str) -> Line:
        return (("    To type: ", "dim"), (self._marks.clean(command), "bold"))

    def _table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> Iterator[Line]:
        """Columns as wide as their widest cell; the last ones are cut where the screen ends."""
        if not rows:
            return
        kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
        room = self._width - 2
        widths = {}
        for place in kept:
            cells = (headers[place], *(row[place] for row in rows))
            widths[place] = min(max(cell_len(self._marks.clean(cell)) for cell in cells), max(room, 0))
            room -= widths[place] + 2

        def line(cells: Sequence[str]) -> str:
            fitted = (self._marks.fit(cells[at], widths[at], right=at not in left) for at in kept if widths[at])
            return f"  {'  '.join(fitted)}".rstrip()

        yield ((line(headers), "dim"),)
        for row in rows:
            yield ((line(row), ""),)
