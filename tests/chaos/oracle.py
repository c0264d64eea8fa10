"""
Judge whether every row is there once, now and in the end, and whether the ledger agrees.

Runs in: the laboratory, over connections that only look. Invariant: nothing of pgonce is asked: the auditor of
examples/audit.sql judges tables and ledger, and the ledger is compared with the files of Spark's checkpoint. In real
time, where Spark's files say nothing, positions are compared with the rows.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psycopg
from chaos.workloads import Workload
from support.audit import left_behind, query_id, recorded, wrong_ledger

_AUDIT = Path(__file__).parents[2] / "examples" / "audit.sql"


@dataclass
class Judgement:
    """What is wrong with a table: rows lost and doubled, and everything as text."""

    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.wrong)


def judge_running(url: str, workload: Workload, checkpoint: Path) -> Judgement:
    """Judge a table that is written to: a prefix of its source, as many rows as the ledger says, in one snapshot."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        judgement = _audited_rows(connection, workload, None)
        by_stream = f"SELECT stream, count(*) FROM {_rows_of(workload)} GROUP BY 1"
        rows = dict(connection.execute(by_stream.encode()).fetchall())
        if workload.counts_rows and (checkpoint / "metadata").exists():
            in_ledger = sum(batch.rows for batch in recorded(connection, str(checkpoint)))
            if in_ledger != sum(rows.values()):
                judgement.wrong.append(f"{workload.table} has {sum(rows.values())} rows, its batches {in_ledger}")
        if workload.in_real_time:
            judgement.wrong += _wrong_positions(connection, workload, checkpoint, rows)
    return judgement


def judge_finished(url: str, workload: Workload, checkpoint: Path, totals: dict[int, int]) -> Judgement:
    """Judge a table after its query's end: all that the source had, and ledger and checkpoint agree on every batch."""
    in_itself = judge_running(url, workload, checkpoint)
    with psycopg.connect(url) as connection:
        judgement = _audited_rows(connection, workload, totals)
        judgement.wrong += in_itself.wrong
        if workload.in_real_time:
            # A run of such a query has a checkpoint of its own, and its records in the ledger may lag behind.
            # A number comes again if a run began while the one before it made its last record.
            batches = {batch.batch_id for batch in recorded(connection, str(checkpoint))}
            is_unbroken = batches == set(range(len(batches)))
            judgement.wrong += [] if is_unbroken else [f"batches {sorted(batches)} have a hole"]
            judgement.wrong += left_behind(connection)
        else:
            judgement.wrong += wrong_ledger(connection, str(checkpoint)) + _audited_ledger(connection, checkpoint)
    return judgement


def _audited_rows(connection: psycopg.Connection, workload: Workload, totals: dict[int, int] | None) -> Judgement:
    """
    What the auditor that users run finds in the table.

    :param totals: how many rows of each stream have come; None for as many as there are.
    """
    found = workload.found.format(rows=_rows_of(workload), t=workload.table)
    connection.execute(_AUDIT.read_text())
    connection.execute(f"CREATE TEMP TABLE found AS {found}".encode())
    if totals is None:
        top = f"SELECT stream, ({workload.top})::bigint AS top FROM found GROUP BY stream"
        connection.execute(f"CREATE TEMP TABLE tops AS {top}".encode())
    else:
        connection.execute("CREATE TEMP TABLE tops (stream int, top bigint)")
        connection.cursor().executemany("INSERT INTO tops VALUES (%s, %s)", list(totals.items()))
    connection.execute(f"CREATE TEMP TABLE wanted AS {workload.wanted}".encode())
    audit = "SELECT finding, record, in_source, in_target FROM pg_temp.audit_rows('wanted', 'found', %s)"
    judgement = Judgement()
    by_finding: dict[str, list[str]] = defaultdict(list)
    for finding, record, in_source, in_target in connection.execute(audit, [workload.keys]):
        judgement.lost += max(in_source - in_target, 0) if finding == "lost" else 0
        judgement.doubled += max(in_target - in_source, 0) if finding in ("doubled", "not of the source") else 0
        by_finding[finding].append(str(record))
    judgement.wrong += [
        f"{workload.table}: {len(records)} {finding}, such as {records[0]}" for finding, records in by_finding.items()
    ]
    return judgement


def _rows_of(workload: Workload) -> str:
    return workload.rows.format(t=workload.table)


def _audited_ledger(connection: psycopg.Connection, checkpoint: Path) -> list[str]:
    """What it finds in the query's ledger."""
    found = connection.execute(
        "SELECT finding, batch_id, more FROM pg_temp.audit_ledger() WHERE query_id = %s", [query_id(checkpoint)]
    ).fetchall()
    return [f"{finding}: batch {batch_id}, {more}" for finding, batch_id, more in found]


class Position(NamedTuple):
    """How far a partition is stored by a query in real time, and whether rows of it came within two seconds."""

    partition: int
    next_offset: int
    moved_lately: bool


def positions(connection: psycopg.Connection, checkpoint: Path) -> list[Position]:
    """Where a query in real time stands; nothing before its first run has begun."""
    if not (checkpoint / "metadata").exists():
        return []
    try:
        found = connection.execute(
            "SELECT partition, next_offset, moved_at > clock_timestamp() - interval '2 s' FROM pgonce.positions "
            "JOIN pgonce.writers USING (writer_id) WHERE query_id = %s ORDER BY 1",
            [query_id(checkpoint)],
        ).fetchall()
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable):
        return []
    return [Position(*row) for row in found]


def _wrong_positions(
    connection: psycopg.Connection, workload: Workload, checkpoint: Path, rows: dict[int, int]
) -> list[str]:
    """A position that is not where the rows end, and a record of a batch that goes beyond it."""
    stored = {one.partition: one.next_offset for one in positions(connection, checkpoint)}
    wrong = [
        f"{workload.table}, partition {partition}: {rows.get(partition, 0)} rows, position {stored.get(partition, 0)}"
        for partition in sorted(stored.keys() | rows.keys())
        if stored.get(partition, 0) != rows.get(partition, 0)
    ]
    for batch in recorded(connection, str(checkpoint)) if stored else []:
        for ends in batch.end["0"].values():
            wrong += [
                f"{workload.table}, partition {partition}: batch {batch.batch_id} ends at {end}, rows do at {at}"
                for partition, end in ends.items()
                if end > (at := stored.get(int(partition), 0))
            ]
    return wrong


def sessions_left(url: str, *, in_transactions: bool = False) -> list[str]:
    """Sessions of pgonce's that are still there when all its drivers are gone; or only those in a transaction."""
    narrowed = "AND xact_start IS NOT NULL" if in_transactions else ""
    until = time.monotonic() + 30
    while True:
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT format('session %s (%s) is left, in state %s', pid, application_name, state) "
                f"FROM pg_stat_activity WHERE application_name LIKE 'pgonce%' {narrowed}".encode()
            ).fetchall()
        if not found or time.monotonic() > until:
            return [text for (text,) in found]
        time.sleep(0.1)


class TotalsWatch:
    """Reads two tables that one transaction writes, all the time, from outside; they must never differ."""

    def __init__(self, url: str, table: str) -> None:
        self.reads = 0
        self.differences: list[str] = []
        self._url = url
        self._query = (
            f"SELECT (SELECT count(*) FROM {table}), (SELECT coalesce(sum(n), 0) FROM {table}_totals), "
            f"(SELECT coalesce(sum(position), 0) FROM {table}), (SELECT coalesce(sum(total), 0) FROM {table}_totals)"
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True) as connection:
                    while not self._ended.wait(0.02):
                        self._look(connection)
            except psycopg.Error:
                # The server is down, as the experiment wants it.
                time.sleep(0.1)

    def _look(self, connection: psycopg.Connection) -> None:
        # One statement sees one snapshot.
        row = connection.execute(self._query).fetchone()
        assert row
        self.reads += 1
        if row[0] != row[1] or row[2] != row[3]:
            difference = f"{row[0]} rows and {row[1]} in the totals; sums {row[2]} and {row[3]}"
            if difference not in self.differences:
                self.differences.append(difference)


def dump_ledger(url: str, directory: Path) -> None:
    """Keep every table of the ledger, for a look into a failure."""
    directory.mkdir(parents=True, exist_ok=True)
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'pgonce%'"
        ).fetchall()
        for schema, table in tables:
            query = f"COPY {schema}.{table} TO STDOUT (FORMAT csv, HEADER)"
            with (directory / f"{table}.csv").open("wb") as file, connection.cursor().copy(query) as copy:
                for data in copy:
                    file.write(data)
