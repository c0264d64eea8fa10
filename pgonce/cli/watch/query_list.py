"""
Draw the list of all queries: what needs attention on top, then one line a query.

Pure: runs in ``pgonce watch``. Invariant: the columns and their words are those of ``pgonce status``; a line is never
wider than the screen, and the columns stand where they stood while only figures change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len

from pgonce.offsets_store.status.figures import UNKNOWN, age_text, count_text, duration_text, rate_text, sparkline
from pgonce.offsets_store.status.states import STATES, Finding, QueryState, name_of, tone_of

from .lines import Line, Marks, Role
from .view import Key, View, key_of

# From the widest to the narrowest: a minute for each character, then two, three and six.
_SPARKLINES = (60, 30, 20, 10)
_LEAST_NAME = 8
_LEAST_WHAT = 30
# From this width on, two cells stand between columns.
_WIDE = 100
# How much of the screen what needs attention may take.
_SHARE_OF_FINDINGS = 4
_ROLES: dict[str, Role] = {"bad": "bad", "warn": "warn", "good": "good", "calm": "good"}


def role_of(state: str) -> Role:
    """How a state is shown where there are colours."""
    return _ROLES.get(tone_of(state), "dim")


def summary(queries: Sequence[QueryState]) -> str:
    """How many queries there are, and in which state: ``30 queries: 1 refused, 29 running``."""
    counts = Counter(query.state for query in queries)
    states = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    how_many = f"{len(queries)} {'query' if len(queries) == 1 else 'queries'}"
    return f"{how_many}: {', '.join(states)}" if states else how_many


def finding_lines(findings: Sequence[Finding], now: datetime, width: int, height: int, marks: Marks) -> list[Line]:
    """What needs attention, a line each: the gravest, and how many more there are."""
    if not findings:
        return [(("Nothing needs attention.", "dim"),)]
    most = max(3, height // _SHARE_OF_FINDINGS)
    shown = findings if len(findings) <= most else findings[: most - 1]
    cells = [_finding_cells(finding, now, marks) for finding in shown]
    kind, who, what = (max(cell_len(row[place]) for row in cells) for place in range(3))
    who = min(who, width // 3)
    room = width - 3 - kind - who - 4
    # On a narrow screen, what to type says more than what was found, which the query's page has.
    what = min(what, room - max(cell_len(row[3]) for row in cells))
    what = what if what >= _LEAST_WHAT else 0
    lines = [
        _finding_line(finding, row, (kind, who, what, room - what), marks)
        for finding, row in zip(shown, cells, strict=True)
    ]
    if len(shown) < len(findings):
        lines.append(((marks.fit(f"   and {len(findings) - len(shown)} more: pgonce health", width), "dim"),))
    return lines


def _finding_cells(finding: Finding, now: datetime, marks: Marks) -> tuple[str, str, str, str]:
    since = f" {age_text(finding.since, now)}" if finding.since else ""
    # The beginning of an id is enough for every command.
    to_do = finding.help.replace(finding.query_id, finding.query_id[:8])
    return (
        marks.clean(finding.finding + since),
        marks.clean(name_of(finding)),
        marks.clean(finding.what),
        marks.clean(to_do),
    )


def _finding_line(
    finding: Finding, cells: tuple[str, str, str, str], widths: tuple[int, int, int, int], marks: Marks
) -> Line:
    role: Role = "bad" if finding.severity == "critical" else "warn"
    return (
        (f"{'!!' if role == 'bad' else ' !'} {marks.fit(cells[0], widths[0])} ", role),
        (f"{marks.fit(cells[1], widths[1], cut='middle')} ", "bold"),
        (f"{marks.fit(cells[2], widths[2])} " if widths[2] else "", ""),
        (marks.fit(cells[3], widths[3]), "bold"),
    )


@dataclass(frozen=True)
class Columns:
    """How wide each column is; 0 where it is left out."""

    name: int
    sink: int
    batch: int
    lag: int
    behind: int
    spark: int
    gap: str


_STATE, _AGE, _RATE, _BEHIND = 8, 4, 8, 6


def columns_for(queries: Sequence[QueryState], width: int, marks: Marks) -> Columns:
    """The widths for all ``queries``, whether they are seen or not: scrolling moves no column."""
    batch = max([5, *(len(_batch(query)) for query in queries)])
    lag = max([5, *(len(_lag(query)) for query in queries)])
    name = max([5, *(cell_len(marks.clean(name_of(query))) for query in queries)])
    sink = max([4, *(cell_len(marks.clean(query.sink_name or UNKNOWN)) for query in queries)])
    gap = "  " if width >= _WIDE else " "
    # The sign of the cursor takes two cells, and each column is followed by a gap.
    left = width - 2 - _STATE - batch - _AGE - _RATE - lag - 6 * len(gap)
    # Only brokers tell it, so without them the column would be empty.
    behind = _BEHIND if any(query.lag_seconds is not None for query in queries) else 0
    left -= behind + len(gap) if behind else 0
    spark = next((wide for wide in _SPARKLINES if name + sink + len(gap) + wide <= left), _SPARKLINES[-1])
    left -= spark + len(gap)
    if left < 2 * _LEAST_NAME:
        left, spark = left + spark + len(gap), 0
    if name + sink > left:
        # The longer one gives way first.
        half = left // 2
        name = min(name, max(half, left - sink))
        sink = left - name
    return Columns(max(name, 0), max(sink, 0), batch, lag, behind, spark, gap)


def header_line(columns: Columns, width: int, marks: Marks) -> Line:
    """The names of the columns."""
    cells = (
        marks.fit("QUERY", columns.name),
        marks.fit("SINK", columns.sink),
        marks.fit("STATE", _STATE),
        marks.fit("BATCH", columns.batch, right=True),
        marks.fit("AGE", _AGE, right=True),
        marks.fit("ROWS/S", _RATE, right=True),
        marks.fit("LAG", columns.lag, right=True),
        *([marks.fit("BEHIND", columns.behind, right=True)] if columns.behind else []),
        *([marks.fit("LAST HOUR", columns.spark)] if columns.spark else []),
    )
    return ((marks.fit(f"  {columns.gap.join(cells)}", width), "head"),)


def query_line(
    query: QueryState,
    activity: Mapping[Key, Sequence[float]],
    now: datetime,
    columns: Columns,
    marks: Marks,
    *,
    is_chosen: bool,
) -> Line:
    """One query, and its cursor."""
    course = sparkline(list(activity.get(key_of(query), ())), columns.spark, ascii_only=marks.ascii_only)
    figures = (
        marks.fit(_batch(query), columns.batch, right=True),
        marks.fit(age_text(query.published_at, now) if query.published_at else "-", _AGE, right=True),
        marks.fit(rate_text(query.rows_per_second) if query.published_at else "-", _RATE, right=True),
        marks.fit(_lag(query), columns.lag, right=True),
        *([marks.fit(duration_text(query.lag_seconds), columns.behind, right=True)] if columns.behind else []),
        *([marks.fit(course, columns.spark)] if columns.spark else []),
    )
    plain: Role = "cursor" if is_chosen else ""
    return (
        ("> " if is_chosen else "  ", plain),
        (marks.fit(name_of(query), columns.name, cut="middle") + columns.gap, plain or "bold"),
        # The schema gives way, because the table's name says more.
        (marks.fit(query.sink_name or UNKNOWN, columns.sink, cut="start") + columns.gap, plain),
        # In its own colour under the cursor too: the line of a query that is refused is the one that is looked at.
        (marks.fit(query.state, _STATE), role_of(query.state)),
        (columns.gap + columns.gap.join(figures), plain),
    )


def _batch(query: QueryState) -> str:
    return "-" if query.batch_id is None else str(query.batch_id)


def _lag(query: QueryState) -> str:
    return count_text(query.lag)


def list_lines(
    rows: Sequence[QueryState],
    activity: Mapping[Key, Sequence[float]],
    now: datetime,
    view: View,
    columns: Columns,
    room: int,
    marks: Marks,
) -> list[Line]:
    """The part of the list that is seen; ``rows`` as :func:`.view.listed` has sorted them."""
    seen = rows[view.top : view.top + room]
    return [query_line(query, activity, now, columns, marks, is_chosen=key_of(query) == view.cursor) for query in seen]
