"""
Find the statement that upserts gathered rows fastest: `make bench-upserts`.

Runs anywhere, with Postgres and without Spark. Invariant: all statements get the same table, and the rows in the same
order; each round begins with another statement. CPU seconds are those of the one session that writes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median

import psutil
import psycopg
from embedded_postgres import EmbeddedPostgres
from loads import COLUMNS
from measure import alternate
from psycopg import sql
from report import ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS
from screen import about_this_run, write_results

# Rows as in `loads.py`, from {0} up to {1}.
_ROWS = """
SELECT n AS id, (n % 100000)::integer AS customer, n * 0.01::double precision AS amount,
       CASE WHEN n % 3 = 0 THEN 'accepted' ELSE 'returned' END AS status,
       'order ' || n || ' of the day' AS note, '2025-06-15'::timestamptz + n * interval '1 microsecond' AS at
FROM generate_series({}, {} - 1) AS n
"""
_NAMES = ("customer", "amount", "status", "note", "at")
_FROM_EXCLUDED = ", ".join(f"{name} = EXCLUDED.{name}" for name in _NAMES)
_FROM_S = ", ".join(f"{name} = s.{name}" for name in _NAMES)
_ON_CONFLICT = f"ON CONFLICT (id) DO UPDATE SET {_FROM_EXCLUDED}"
_MERGE = (
    "MERGE INTO target AS t USING (SELECT * FROM gathered ORDER BY id) AS s ON t.id = s.id {} "
    f"WHEN MATCHED THEN UPDATE SET {_FROM_S} "
    "WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.customer, s.amount, s.status, s.note, s.at)"
)
_BY_INDEX = "SET LOCAL enable_hashjoin = off; SET LOCAL random_page_cost = 1"
_BOUNDED = "AND t.id >= (SELECT min(id) FROM gathered) AND t.id <= (SELECT max(id) FROM gathered)"
# The greatest key before the upsert; half of the gathered ones are above it.
_GREATEST = "(SELECT max(id) FROM target)"
_WITH_ROOM = "the table's fillfactor is 50"
_UPDATE = f"UPDATE target AS t SET {_FROM_S} FROM gathered AS s WHERE t.id = s.id"
_INSERT_REST = (
    "INSERT INTO target SELECT * FROM gathered AS s WHERE NOT EXISTS (SELECT FROM target AS t WHERE t.id = s.id) "
    "ORDER BY id"
)
STATEMENTS = {
    "ON CONFLICT, sorted": (f"INSERT INTO target SELECT * FROM gathered ORDER BY id {_ON_CONFLICT}",),
    "ON CONFLICT, unsorted": (f"INSERT INTO target SELECT * FROM gathered {_ON_CONFLICT}",),
    "ON CONFLICT, sorted in memory": (
        "SET LOCAL work_mem = '256MB'",
        f"INSERT INTO target SELECT * FROM gathered ORDER BY id {_ON_CONFLICT}",
    ),
    "MERGE, through a part of the index": (_BY_INDEX, _MERGE.format(_BOUNDED)),
    "MERGE, new keys beyond the greatest by INSERT": (
        _BY_INDEX,
        _MERGE.format(_BOUNDED).replace("FROM gathered ", f"FROM gathered WHERE id <= {_GREATEST} "),
        f"INSERT INTO target SELECT * FROM gathered WHERE id > {_GREATEST} ORDER BY id",
    ),
    "MERGE, sorted in memory": ("SET LOCAL work_mem = '256MB'", _BY_INDEX, _MERGE.format(_BOUNDED)),
    f"MERGE, {_WITH_ROOM}": (_BY_INDEX, _MERGE.format(_BOUNDED)),
    "MERGE, asking the index for each row": (
        f"{_BY_INDEX}; SET LOCAL enable_mergejoin = off",
        "ANALYZE gathered",
        _MERGE.format(""),
    ),
    "UPDATE, then ON CONFLICT for the rest": (_UPDATE, f"{_INSERT_REST} {_ON_CONFLICT}"),
    "UPDATE, then INSERT of the rest": (_UPDATE, _INSERT_REST),
    "DELETE, then INSERT": (
        "DELETE FROM target AS t USING gathered AS s WHERE t.id = s.id",
        "INSERT INTO target SELECT * FROM gathered ORDER BY id",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="make bench-upserts", description="Statements that upsert gathered rows.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table and of the upsert; half are new")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    times: dict[str, list[list[float]]] = {name: [] for name in STATEMENTS}
    cpu: dict[str, list[list[float]]] = {name: [] for name in STATEMENTS}
    wal: dict[str, float] = {}
    with EmbeddedPostgres(settings=POSTGRES) as postgres, psycopg.connect(postgres.tcp_uri()) as connection:

        def measure(name: str, number: int) -> None:
            console.print(f"round {number + 1} of {given.rounds}: {name}", style="dim")
            fillfactor = 50 if _WITH_ROOM in name else 100
            seconds, used, wal[name] = _upsert(connection, STATEMENTS[name], given.rows, fillfactor)
            times[name].append([seconds * 1000])
            cpu[name].append([used])

        alternate(tuple(STATEMENTS), given.rounds, measure)
        about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
    first = next(iter(STATEMENTS))
    table = Table(title=f"{given.rows:,} rows, half of them new", title_justify="left")
    for column in ("statement", "median ms", "x the first", "CPU s", "x the first", "WAL, MB"):
        table.add_column(column)
    for name, rounds in times.items():
        middle = median(ms for of_round in rounds for ms in of_round)
        used = median(seconds for of_round in cpu[name] for seconds in of_round)
        table.add_row(
            name,
            f"{middle:,.0f}",
            f"{median(ratios(rounds, times[first])):.2f}",
            f"{used:.2f}",
            f"{median(ratios(cpu[name], cpu[first])):.2f}",
            f"{wal[name]:,.0f}",
        )
    console.print(table)
    what = {"rows": given.rows, "ms": times, "cpu_seconds": cpu, "wal_mb": wal}
    path = write_results(RESULTS, about, what, prefix="upserts-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


def _upsert(
    connection: psycopg.Connection, statements: Sequence[str], rows: int, fillfactor: int
) -> tuple[float, float, float]:
    """
    Seconds until COMMIT is answered, CPU seconds, and MB of WAL.

    The rows come in four parts, as they do when tasks end.
    """
    connection.execute("DROP TABLE IF EXISTS target, gathered")
    create = sql.SQL("CREATE TABLE target ({}, PRIMARY KEY (id)) WITH (fillfactor = {})")
    connection.execute(create.format(sql.SQL(COLUMNS), fillfactor))
    connection.execute(sql.SQL(f"INSERT INTO target {_ROWS}").format(0, rows))
    connection.commit()
    connection.execute(sql.SQL("CREATE TEMPORARY TABLE gathered ({})").format(sql.SQL(COLUMNS)))
    for part in (2, 0, 3, 1):
        begin = rows // 2 + part * (rows // 4)
        connection.execute(sql.SQL(f"INSERT INTO gathered {_ROWS}").format(begin, begin + rows // 4))
    session = psutil.Process(connection.info.backend_pid)
    before, began, used = wal_position(connection), time.perf_counter(), cpu_seconds(session)
    for statement in statements:
        connection.execute(statement.encode())
    connection.commit()
    seconds, used = time.perf_counter() - began, cpu_seconds(session) - used
    found = connection.execute("SELECT count(*) FROM target").fetchone()
    if found != (rows // 2 * 3,):
        raise RuntimeError(f"{statements[-1]} left {found} rows.")
    return seconds, used, (wal_position(connection) - before) / 1e6


def cpu_seconds(process: psutil.Process) -> float:
    """What a process has used so far, without its children."""
    times = process.cpu_times()
    return times.user + times.system


def wal_position(connection: psycopg.Connection) -> float:
    """How many bytes of WAL the server has written so far."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row
    return float(row[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
