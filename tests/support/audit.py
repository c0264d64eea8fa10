"""
Check that every row is there once, and that the ledger agrees. The answer is what is wrong, in sentences.

Runs in: pytest, over a connection that only looks. Invariant: it trusts nothing of pgonce: rows are compared with what
was put into the source, the ledger with the files of Spark's checkpoint.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from support.inbox import Row


@dataclass(frozen=True)
class RecordedBatch:
    """A row of ``pgonce.batches``."""

    batch_id: int
    rows: int
    transport: str
    start: Any
    end: Any
    offset_log: str


def what_is_wrong(
    observer: psycopg.Connection, table: str, checkpoint: str, expected: Sequence[Row], *, adopted: int = 0
) -> list[str]:
    """
    Compare a table that one query fills with its source, and the query's ledger with its checkpoint.

    :param adopted: the first batch that the ledger knows.
    """
    rows = sum(batch.rows for batch in recorded(observer, checkpoint))
    return [
        *wrong_rows(observer, table, expected),
        *([] if rows == len(expected) else [f"the ledger counts {rows} rows, the source {len(expected)}"]),
        *wrong_ledger(observer, checkpoint, adopted=adopted),
    ]


def wrong_rows(observer: psycopg.Connection, table: str, expected: Sequence[Row]) -> list[str]:
    """Compare the rows of a table with those expected, each as often as it should be there."""
    found = observer.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))).fetchall()
    wrong = [] if len(found) == len(expected) else [f"{len(found)} rows in {table}, {len(expected)} expected"]
    there, wanted = Counter(map(repr, found)), Counter(map(repr, expected))
    wrong += [f"lost: {row} {times}x" for row, times in (wanted - there).items()]
    wrong += [f"not of the source: {row} {times}x" for row, times in (there - wanted).items()]
    log = observer.execute("SELECT to_regclass(%s)", [f"{table}_writes"]).fetchone()
    if log and log[0]:
        writes = observer.execute(sql.SQL("SELECT id FROM {}").format(sql.Identifier(f"{table}_writes"))).fetchall()
        twice = [number for (number,), times in Counter(writes).items() if times > 1]
        wrong += [f"written more than once: {sorted(twice)}"] if twice else []
    return wrong


def wrong_ledger(observer: psycopg.Connection, checkpoint: str, *, sink_name: str = "%", adopted: int = 0) -> list[str]:
    """Look for holes and overlaps in a writer's batches, for disagreement with the checkpoint, for staged tables."""
    batches = recorded(observer, checkpoint, sink_name)
    ids = [batch.batch_id for batch in batches]
    wrong = [] if ids == list(range(adopted, adopted + len(ids))) else [f"batches {ids} are not in unbroken order"]
    for one, next_one in pairwise(batches):
        if one.end is None or one.end != next_one.start:
            wrong.append(f"batch {next_one.batch_id} starts at {next_one.start}, the one before ends at {one.end}")
    for batch in batches:
        file = Path(checkpoint) / "offsets" / str(batch.batch_id)
        if file.read_text() != batch.offset_log:
            wrong.append(f"offsets/{batch.batch_id} of the checkpoint is not the text that the ledger holds")
    committed = [int(file.name) for file in (Path(checkpoint) / "commits").glob("[0-9]*")]
    if ids[-1:] != [max(committed)]:
        wrong.append(f"the ledger ends with batch {ids[-1:]}, the checkpoint with {max(committed)}")
    writer = observer.execute(
        "SELECT last_batch_id, end_offsets FROM pgonce.writers WHERE query_id = %s AND sink_name LIKE %s",
        [query_id(checkpoint), sink_name],
    ).fetchall()
    if writer != [(batch.batch_id, batch.end) for batch in batches[-1:]]:
        wrong.append(f"the writer's row {writer} is not at its last batch {batches[-1:]}")
    return wrong + left_behind(observer)


def left_behind(observer: psycopg.Connection) -> list[str]:
    """Staged tables, by the ledger's account and by Postgres's own."""
    registered = observer.execute("SELECT table_name FROM pgonce.staged_tables").fetchall()
    there = observer.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^staged_[0-9a-f]{24}_'"
    ).fetchall()
    return [f"staged table left: {name}" for (name,) in {*registered, *there}]


def open_transactions(observer: psycopg.Connection) -> int:
    """How many commits of pgonce have begun and not ended."""
    return _sessions(observer, "xact_start IS NOT NULL")


def waiting_commits(observer: psycopg.Connection) -> int:
    """How many commits of pgonce wait for a lock."""
    return _sessions(observer, "application_name LIKE 'pgonce %' AND wait_event_type = 'Lock'")


def _sessions(observer: psycopg.Connection, which: str) -> int:
    found = observer.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgonce%' "
        f"AND datname = current_database() AND {which}".encode()
    ).fetchone()
    return found[0] if found else 0


def recorded(observer: psycopg.Connection, checkpoint: str, sink_name: str = "%") -> list[RecordedBatch]:
    """The batches that the ledger holds of a checkpoint's query."""
    found = observer.execute(
        "SELECT batch_id, rows, transport, start_offsets, b.end_offsets, offset_log FROM pgonce.batches AS b "
        "JOIN pgonce.writers USING (writer_id) WHERE query_id = %s AND sink_name LIKE %s ORDER BY batch_id",
        [query_id(checkpoint), sink_name],
    )
    return [RecordedBatch(*row) for row in found]


def replays(observer: psycopg.Connection, checkpoint: str) -> list[int]:
    """The batches of a checkpoint's query that were skipped, once for each run that did."""
    found = observer.execute(
        "SELECT batch_id FROM pgonce.replays JOIN pgonce.writers USING (writer_id) WHERE query_id = %s ORDER BY 1",
        [query_id(checkpoint)],
    )
    return [batch_id for (batch_id,) in found]


def query_id(checkpoint: str | Path) -> str:
    """The id that Spark keeps in the checkpoint."""
    return str(json.loads((Path(checkpoint) / "metadata").read_text())["id"])


def published(observer: psycopg.Connection) -> dict[str, int]:
    """How many batches each query has published; the ledger may not be there yet."""
    if observer.execute("SELECT to_regclass('pgonce.batches')").fetchone()[0] is None:
        return {}
    return dict(
        observer.execute(
            "SELECT query_name, count(*) FROM pgonce.batches JOIN pgonce.writers USING (writer_id) GROUP BY 1"
        ).fetchall()
    )
