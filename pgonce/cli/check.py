"""
The command ``pgonce check`` tries whether the promises would hold on a server, and a table may be written to.

Runs in a shell, without Spark, under the role that the query will have. Invariant: it leaves nothing behind on the
server; only ``--table`` imports pyspark, because only that asks what a commit would say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated

import psycopg
import typer
from psycopg import sql

from pgonce.check.answers import BEGIN, Answer, Finding, Holds, Question, one_row
from pgonce.check.check import check_server
from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.errors import LedgerError, PgonceError, RecoveryError, TargetError, needing
from pgonce.offsets_store.ledger.published import changed_targets
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.postgres.search_path import execute_in_tx
from pgonce.offsets_store.status.read_stored import LastWritten, last_written
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.status.stored import find_writers
from pgonce.sink.options.definitions import BY_KEY
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.table.catalogue import TargetTable, look_up_table
from pgonce.sink.writing.table.lock import lock_table

from .answers.output import print_json, print_lines
from .terms import ExitCode, Json, Url

_OWN = "pg_temp.pgonce_target"
# A serial column's default calls nextval with the rights of who inserts; an identity column's does not.
_SEQUENCES_NOT_PERMITTED = sql.SQL("""
SELECT a.attname::text, s.oid::regclass::text
FROM pg_attrdef AS d
JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
JOIN pg_depend AS u ON u.classid = 'pg_catalog.pg_attrdef'::regclass AND u.objid = d.oid
    AND u.refclassid = 'pg_catalog.pg_class'::regclass
JOIN pg_class AS s ON s.oid = u.refobjid
WHERE d.adrelid = {oid} AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') END
ORDER BY a.attnum
""")
_WIDTH = max(len(holds.value) for holds in Holds)


def check(
    url: Url = "",
    table: Annotated[str | None, typer.Option(help="Also check that the role may write to this table.")] = None,
    query: Annotated[
        str | None,
        typer.Option(help="Also check the tables of this query (name or id), with the columns of its last batch."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Try on the server which promises would hold there, before a query is started; nothing is left behind."""
    found = check_server(url, *_questions(table, of_query=query is not None))
    if query is not None:
        found += _of_query(url, query, table)
    if as_json:
        print_json([{**dataclasses.asdict(finding), "holds": finding.holds.value} for finding in found])
    else:
        print_lines([*_lines(found), _summary(found)])
    if any(finding.holds is Holds.NO for finding in found):
        raise typer.Exit(ExitCode.NOT_FIT)


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    for finding in found:
        yield f"{finding.holds.value:<{_WIDTH}}  {finding.name}: {finding.says.rstrip('.')}."
        if finding.holds is Holds.NO:
            yield f"{'':<{_WIDTH}}  What does not hold: {finding.promise}"
        if finding.remedy:
            yield f"{'':<{_WIDTH}}  Help: {finding.remedy}"


def _summary(found: Sequence[Finding]) -> str:
    broken = [finding.name for finding in found if finding.holds is Holds.NO]
    if broken:
        return f"Not all promises would hold here: {', '.join(broken)}. Do what Help says, and run this again."
    open_ones = [finding.name for finding in found if finding.holds is Holds.UNKNOWN]
    return (
        "All promises would hold here."
        if not open_ones
        else f"No promise is broken here; not known: {', '.join(open_ones)}."
    )


def _of_query(url: str, query: str, table: str | None) -> list[Finding]:
    """
    Whether the tables of a query take another batch like its last one.

    :param table: only this one, by its qualified name.
    """
    promise = f"The next batch of query {query} can be written."
    try:
        (writer, *_) = find_writers(OffsetsStore(url).queries(), query)
        sinks = last_written(url, writer.query_id)
    except LedgerError as error:
        return [Finding("table", promise, Holds.NO, error.what, error.remedy)]
    into = "" if table is None else f" into {table}"
    answers = list(_look_again(url, sinks, table)) or [
        Answer(Holds.UNKNOWN, f"query {query} has recorded no batch{into}")
    ]
    return [Finding("table", promise, answer.holds, answer.says, answer.remedy) for answer in answers]


def _look_again(url: str, sinks: Sequence[LastWritten], only: str | None) -> Iterator[Answer]:
    """
    Check each table of these sinks with the columns of its last batch, as the commit does, without a lock.

    Nothing of a record becomes part of a statement before it was checked.

    :param only: as the table of :func:`_of_query`.
    :raises ConfigurationError: NOT_INSTALLED.
    :raises ConnectError: if Postgres cannot be reached.
    """
    with needing("spark", "A check of tables"):
        from pgonce.sink.writing.bad_rows.recalled_destination import recalled_to_look
        from pgonce.sink.writing.first_look import look_at_table, looking

    def look(connection: psycopg.Connection, sink: LastWritten, name: str) -> Answer:
        if not sink.tables:
            return _not_checked(name, "no batch has recorded how its rows were written")
        try:
            how, columns = recalled_to_look(sink.tables[name])
            connection.execute("SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '2s'")
            table = look_at_table(connection, how, columns, rooms=EVERY_ROOM)
        except RecoveryError as error:
            return _not_checked(name, error.what)
        except PgonceError as error:
            return Answer(Holds.NO, f"{name}: {error.code}, {error.what}", error.remedy)
        except psycopg.Error as error:
            said = scrub(" ".join((error.diag.message_primary or str(error)).split()))
            return _not_checked(name, f"Postgres says: {said}")
        finally:
            connection.rollback()
        if table is None:
            says = "it is not there, and the next batch creates it, without the rows of earlier batches (createTable)"
        else:
            says = f"it can take rows with the columns of batch {sink.batch_id}"
            now = {table.qualified_name: table.oid}
            if changed := changed_targets(sink.oids, now, is_one_table=False).get(name):
                says += f". {changed} With pinTable, the next batch is refused"
        return Answer(Holds.YES, f"{name}: {says}; functions and triggers were not tried")

    with looking(url) as connection:
        for sink in sinks:
            for name in sorted(sink.tables) or [sink.sink_name]:
                if only in (None, name, name.partition(".")[2]):
                    yield look(connection, sink, name)


def _not_checked(name: str, why: str) -> Answer:
    return Answer(Holds.UNKNOWN, f"{name} was not checked: {why.rstrip('.')}")


def _questions(table: str | None, *, of_query: bool) -> Iterator[Question]:
    yield Question("catalogue", "Each batch first checks its table and locks it.", _catalogue)
    if table is not None and not of_query:
        yield Question("table", f"Batches can be written into {table}.", lambda connection: _table(connection, table))


def _catalogue(connection: psycopg.Connection) -> Answer:
    connection.execute("CREATE TEMPORARY TABLE pgonce_target (id pg_catalog.int8 PRIMARY KEY) ON COMMIT DROP")
    _, found = lock_table(connection, _OWN)
    if found is None or [column.column_name for column in found.columns] != ["id"]:
        return Answer(Holds.NO, "the catalogue does not show a table that exists")
    return Answer(Holds.YES, "the catalogue answers the queries with which each batch begins")


def _table(connection: psycopg.Connection, table: str) -> Answer:
    with needing("spark", "A check of tables"):
        from pgonce.sink.writing.checked_table import check_table
    # Names are found along the user's own search_path.
    connection.execute("ROLLBACK")
    connection.execute(BEGIN)
    connection.execute("SET LOCAL statement_timeout = '10s'")
    try:
        _, found = look_up_table(connection, table)
        if found is None:
            return Answer(Holds.UNKNOWN, f"there is no table {table} yet", "Create it, or set createTable.")
        check_table(found, destination(table))
    except TargetError as error:
        return Answer(Holds.NO, error.what, error.remedy)
    return _writable(connection, found)


def _writable(connection: psycopg.Connection, table: TargetTable) -> Answer:
    name = table.qualified_name
    if not one_row(connection, "SELECT pg_catalog.has_any_column_privilege(%s::pg_catalog.oid, 'INSERT')", table.oid)[
        0
    ]:
        return Answer(Holds.NO, f"the role may not insert into {name}", f"GRANT INSERT ON {name} TO <role>.")
    if without := execute_in_tx(connection, _SEQUENCES_NOT_PERMITTED.format(oid=sql.Literal(table.oid))).fetchall():
        columns, sequences = (", ".join(names) for names in zip(*without, strict=True))
        return Answer(
            Holds.UNKNOWN,
            f"{name} can be written to, but only by rows that have the column {columns}: its default takes the next "
            f"number of {sequences}, which the role may not use",
            f"GRANT USAGE ON SEQUENCE {sequences} TO <role>, if the rows do not have the column.",
        )
    keys = ", ".join(table.primary_key)
    says = f"{name} can be written to; its primary key is {keys}" if keys else f"{name} can be written to"
    notes = []
    if table.row_security:
        notes.append(
            "row-level security checks each row that this role writes, and a row that it refuses stops the batch"
        )
    always = [column.column_name for column in table.columns if column.generated]
    if always:
        notes.append(f"rows must not have the column {', '.join(always)}, which Postgres fills itself")
    if not keys:
        by_key = " and ".join(f"mode={mode}" for mode in BY_KEY)
        notes.append(
            f"it has no primary key: {by_key} need the option keys, and a unique index on exactly these columns"
        )
    notes.append("only the table was checked, not the columns of a query (--query checks these)")
    return Answer(Holds.YES, "; ".join([says, *notes]))
