"""
``pgonce errors``: what went wrong, across queries.

Runs in a shell, without Spark. Invariant: it only reads, and no sentence is cut: where the terminal is narrow, it goes
on in the next line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Annotated

import typer

from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.status.failures import StoredFailure
from pgonce.offsets_store.status.figures import age_text, time_ago
from pgonce.offsets_store.status.store import OffsetsStore

from .answers import output
from .explain import error_entries
from .terms import Json, Url

Since = Annotated[str | None, typer.Option("--since", help="Only what was seen within this time: 90s, 5m, 3h or 2d.")]


def errors(
    url: Url = "",
    since: Since = None,
    query: Annotated[
        str | None, typer.Option("--query", help="Only this query: its name, its id, or the beginning of the id.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what went wrong, the newest first: refused batches, failed plans and recoveries, and queries that ended."""
    found = OffsetsStore(url).failures(None if since is None else time_ago(since), query)
    if as_json:
        output.print_json([dataclasses.asdict(failure) for failure in found])
    elif not found:
        output.print_lines([_nothing(since, query)])
    else:
        now = datetime.now(timezone.utc)
        output.print_table(output.facts((f"{age_text(one.last_at, now)} ago", _said_of(one)) for one in found))
        output.print_lines(["", *_next_lines(failure.code for failure in found)])


def _nothing(since: str | None, query: str | None) -> str:
    parts = (f" of query {query}" if query else "") + (f" since {since}" if since else "")
    return f"No failure{parts} is in the ledger. A query that is gone tells of none: pgonce health"


def _said_of(failure: StoredFailure) -> list[str]:
    """Where it was seen; what happened; and what to do, if an error of pgonce has told that."""
    where = [failure.query_name or failure.query_id]
    if failure.batch_id is not None:
        where.append(f"batch {failure.batch_id}")
    if failure.attempts > 1:
        where.append(f"{failure.attempts} times")
    if failure.sink_name:
        where.append(f"sink {failure.sink_name}")
    help_lines = [f"Help: {failure.remedy}"] if failure.remedy else []
    return [f"{failure.code}: {', '.join(where)}", failure.message, *help_lines]


_MOST_CODES = 3


def _next_lines(codes: Iterable[str]) -> list[str]:
    """What to type next: what explains the codes of pgonce, the first ones."""
    known = error_entries()
    ours = [code for code in dict.fromkeys(codes) if code in known and in_command(code, "CODE") == code]
    explained = [f"Next: pgonce explain {code}" for code in ours[:_MOST_CODES]]
    return explained or ["Next: read the driver's log. These errors are not pgonce's: Spark or the query raised them."]
