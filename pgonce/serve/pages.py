"""
Make what the templates show: which queries, in which order, and numbers and times in few characters.

Pure: runs in ``pgonce serve``. Invariants: what is unknown reads ``?``, never 0; a link holds the whole view, so that
it can be sent to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from pgonce.offsets_store.status.details import QueryDetails
from pgonce.offsets_store.status.figures import age_text
from pgonce.offsets_store.status.states import ENDED, SORTS, STATES, TONES, Finding, QueryState, in_order

from .charts import number, sparkline
from .reader import Snapshot

ATTENTION = "attention"
_NEED_ATTENTION = tuple(state for state, tone in TONES.items() if tone in ("bad", "warn"))
# How many queries a finding names before it counts the rest.
_NAMED = 4


def lag_was(state: QueryState, now: datetime) -> str:
    """The lag that was known last, where it is not known now; else nothing."""
    if state.lag is not None or state.last_lag is None:
        return ""
    return f"was {number(state.last_lag)} {age_text(state.lag_measured_at, now)} ago"


def marked(text: str) -> Markup:
    """
    A text of the documents, with what stands between backticks as code.

    >>> print(marked("Run `pgonce recover` & wait."))
    Run <code>pgonce recover</code> &amp; wait.
    """
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def clock(when: datetime) -> Markup:
    """A time, which the page's script shows in the browser's time zone when the pointer rests on it."""
    return Markup('<time datetime="{}">{:%Y-%m-%d %H:%M:%S} UTC</time>').format(when.isoformat(), when)


def since(when: datetime | None, now: datetime) -> Markup:
    """How long ago that was, with the time itself as its title."""
    if when is None:
        return Markup('<span class="unknown">?</span>')
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
        when.isoformat(), when, age_text(when, now)
    )


@dataclass(frozen=True)
class View:
    """What of the list is shown: a text to look for, states, and an order."""

    text: str = ""
    states: tuple[str, ...] = ()
    sort: str = ""

    def link(self, **changes: Any) -> str:
        """The query string of this view with ``changes``; empty values are left out."""
        values = {"q": self.text, "state": self.states, "sort": self.sort, **changes}
        found = urlencode({name: value for name, value in values.items() if value}, doseq=True)
        return f"?{found}" if found else "?"

    def sorted_by(self, column: str) -> str:
        """The query string that sorts by a column, or the other way round if it is sorted by that already."""
        return self.link(sort=f"-{column}" if self.sort == column else column)


def view_of(text: str, states: Iterable[str], sort: str) -> View:
    """The view that a query string asks for; what it misspells is left out."""
    known = (*STATES, ATTENTION)
    chosen = tuple(dict.fromkeys(state for state in states if state in known))
    return View(text.strip()[:200], chosen, sort if sort.removeprefix("-") in SORTS else "")


@dataclass(frozen=True)
class Chip:
    """How many queries are in a state, and the link that shows them alone."""

    word: str
    tone: str
    count: int
    link: str
    is_chosen: bool


def query_link(query_id: str, sink: str | None) -> str:
    """The path of a query's page."""
    return f"/queries/{quote(query_id, safe='')}" + (f"?{urlencode({'sink': sink})}" if sink is not None else "")


def queries_of(snapshot: Snapshot, view: View) -> list[QueryState]:
    """The queries of the list, in the order that the view asks for."""
    wanted = {each for state in view.states for each in (_NEED_ATTENTION if state == ATTENTION else (state,))}
    found = [
        state
        for state in snapshot.states
        if (state.state in wanted if wanted else state.state not in ENDED)
        if _has_text(view.text, state.query_name, state.sink_name, state.failure_code, query_id=state.query_id)
    ]
    return in_order(found, view.sort.removeprefix("-") or "state", reverse=view.sort.startswith("-"))


def course(state: QueryState, snapshot: Snapshot) -> Markup:
    """The picture of a query's rows in the last hour; nothing if there were none."""
    rows = snapshot.rows_by_minute.get((state.query_id, state.sink_name or ""), ())
    return sparkline(rows) if any(rows) else Markup("")


def _has_text(text: str, *values: str | None, query_id: str) -> bool:
    wanted = text.casefold()
    return query_id.startswith(text) or any(wanted in value.casefold() for value in values if value)


def chips_of(snapshot: Snapshot, view: View) -> list[Chip]:
    """One chip for each state that there is, those that need attention first."""
    counts = Counter(state.state for state in snapshot.states)
    chips = []
    for state in STATES:
        if counts[state] or state in view.states:
            is_chosen = state in view.states
            states = tuple(each for each in view.states if each != state) if is_chosen else (*view.states, state)
            chips.append(Chip(state, TONES[state], counts[state], view.link(state=states), is_chosen))
    return chips


@dataclass(frozen=True)
class Group:
    """
    Findings that ask for the same: all of them are counted, and the ``first`` are named.

    ``what`` and ``help`` are those of all; ``since`` is that of the oldest, and ``link`` shows them all.
    """

    severity: str
    finding: str
    first: Sequence[Finding]
    count: int
    what: str
    since: datetime | None
    help: str
    link: str


def findings_of(snapshot: Snapshot, view: View) -> list[Group]:
    """What needs attention, of the queries that the view's text names: what is critical first, the oldest first."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for one in snapshot.findings:
        if _has_text(view.text, one.query_name, one.sink_name, one.what, query_id=one.query_id):
            # Some commands name the query, and what an error tells to do names its table.
            is_refused = one.finding == "refused"
            asks = one.what.partition(" ")[0] if is_refused else one.help.replace(one.query_id, "")
            groups.setdefault((one.severity, one.finding, asks), []).append(one)
    return [_group(view, *key, found) for key, found in groups.items()]


def _group(view: View, severity: str, finding: str, asks: str, found: Sequence[Finding]) -> Group:
    is_same, says_same = len({one.what for one in found}) == 1, len({one.help for one in found}) == 1
    link = view.link(state=(finding,)) if finding in STATES else view.link(state=(), sort="state")
    return Group(
        severity,
        finding,
        found[:_NAMED],
        len(found),
        found[0].what if is_same else asks if finding == "refused" else "",
        min((one.since for one in found if one.since), default=None),
        found[0].help if says_same else "pgonce errors" if finding == "refused" else asks.strip(),
        link,
    )


def ledger_says(found: QueryDetails, state: QueryState) -> list[str]:
    """What the ledger alone tells of the next start, as sentences; the checkpoint may say otherwise."""
    writer = found.writer
    if writer is None:
        return ["It has published nothing yet, so its next start begins with the first batch of its checkpoint."]
    if writer.replaced_by is not None:
        return [f"Query {writer.replaced_by} has taken its place: if it is started again, its batches are refused."]
    if writer.retired_at is not None:
        return ["It was retired: if it is started again, its batches are refused."]
    said = [
        f"Its last batch is {number(writer.batch_id)}. If it is started on its own checkpoint, it goes on after that "
        "batch; if Spark runs that batch again, it is skipped."
    ]
    if writer.guarantee == "ids":
        said.append("Its batches are judged by their ids alone, which is weaker than by their offsets.")
    elif writer.end_offsets is None:
        said.append("Where the last batch ended is not known.")
    if writer.disagreements:
        said.append(f"{number(writer.disagreements)} progress events of Spark disagree with the ledger.")
    if writer.target_change:
        said.append(f"Its table has changed: {writer.target_change}.")
    if state.state == "refused":
        said.append("If nothing changes, its next start runs into the same failure.")
    return said
