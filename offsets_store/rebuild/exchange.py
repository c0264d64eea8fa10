"""
Compare two tables, and let them change places: their names, and those of their parts, and what the ledger says of them.

Runs in the command ``pgonce swap``; what takes no connection is pure. Invariant: what people or queries may rely on
with the living table, and the new one does not have, is named: columns, keys, indexes, grants, comments. Where a
statement removes the difference, it is shown. Grants and comments stay with their table, so the names change places
only if these are alike.

The key of a batch job goes with the table that has its rows. So a job that is run again is skipped where its rows are,
and published where they are not. (A job finds a key under an earlier name of its table by the oid. So such a key stays
as it is, unless the other table has that name now.) A letter in the ledger stays with its query and with the table that
has the other rows of its batch. Letters in a table of the user's own are left alone: a replay finds out that the name
means another table by now.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from uuid import uuid4

from psycopg import sql
from sqlalchemy import BigInteger, Connection, bindparam, select, text, update
from sqlalchemy.dialects import postgresql

from ..ledger.tables import dead_letters
from ..postgres.text import QUALIFIED_NAME
from .described_table import EVERYBODY, Column, Grants, Part, Table


def differences(living: Table, new: Table) -> list[str]:
    """The texts for what may break, with the statements that remove a difference in grants or comments."""
    found = [*_columns(living, new), *_order(living, new), *_parts_of_one(living, new)]
    if living.replica_identity != new.replica_identity:
        found.append("its REPLICA IDENTITY differs")
    if grants := list(_grants(living, new)):
        found.append(f"its grants differ, run: {'; '.join(grants)}")
    if comments := list(_comments(living, new)):
        found.append(f"its comments differ, run: {'; '.join(comments)}")
    return found


def _columns(living: Table, new: Table) -> Iterator[str]:
    theirs = {column.name: column for column in new.columns}
    for column in living.columns:
        other = theirs.pop(column.name, None)
        if other is None:
            yield f"column {column.name} is missing"
        else:
            yield from _column(column, other)
    for column in theirs.values():
        if column.not_null and column.default is None and not column.generated:
            yield f"column {column.name} is new, and needs a value"


def _column(living: Column, new: Column) -> Iterator[str]:
    if living.type != new.type:
        yield f"column {living.name} is {new.type}, not {living.type}"
    if living.not_null != new.not_null:
        yield f"column {living.name} {'must not' if new.not_null else 'may'} be null"
    if living.generated != new.generated:
        yield f"column {living.name} is generated in another way"
    elif living.default != new.default:
        yield f"column {living.name} has the default {new.default or 'null'}, not {living.default or 'null'}"


def _order(living: Table, new: Table) -> Iterator[str]:
    """Programs that read or write all columns by their order need the same columns first."""
    names, others = [column.name for column in living.columns], [column.name for column in new.columns]
    if set(names) <= set(others) and others[: len(names)] != names:
        yield f"its columns come in another order: {', '.join(others)}"


def _parts_of_one(living: Table, new: Table) -> Iterator[str]:
    """What only the living table has, and what only the new one has and may refuse rows by."""
    for part in _not_in(new, living.parts):
        if not part.definition.startswith("NOT NULL "):
            yield f"it lacks {part.name} ({part.definition.strip()})"
    for part in _not_in(living, new.parts):
        if part.refuses_rows:
            yield f"it alone has {part.name} ({part.definition.strip()})"


def _not_in(table: Table, parts: Iterable[Part]) -> Iterator[Part]:
    there = Counter(part.definition for part in table.parts)
    for part in parts:
        there[part.definition] -= 1
        if there[part.definition] < 0:
            yield part


def _grants(living: Table, new: Table) -> Iterator[str]:
    """The statements that give the new table the grants of the living one, on what both of them have."""
    table = sql.SQL("TABLE {}").format(new.identifier)
    yield from _alike(table, living.grants, new.grants)
    of_columns = {column.name: column.grants for column in living.columns}
    for column in new.columns:
        yield from _alike(table, of_columns.get(column.name, column.grants), column.grants, column.name)
    of_sequences = {sequence.column: sequence.grants for sequence in living.sequences}
    for sequence in new.sequences:
        what = sql.SQL("SEQUENCE {}").format(sql.Identifier(new.schema, sequence.name))
        yield from _alike(what, of_sequences.get(sequence.column, sequence.grants), sequence.grants)


def _alike(what: sql.Composed, wanted: Grants, there: Grants, column: str | None = None) -> Iterator[str]:
    on = sql.SQL(" ({}) ON {}").format(sql.Identifier(column), what) if column else sql.SQL(" ON {}").format(what)
    for (role, privilege), grantable in sorted(there.items()):
        if (role, privilege) not in wanted or (grantable and not wanted[role, privilege]):
            how = "REVOKE GRANT OPTION FOR " if (role, privilege) in wanted else "REVOKE "
            yield (sql.SQL(how + privilege) + on + sql.SQL(" FROM {}").format(_role(role))).as_string(None)
    for (role, privilege), grantable in sorted(wanted.items()):
        if (role, privilege) not in there or (grantable and not there[role, privilege]):
            how = " TO {} WITH GRANT OPTION" if grantable else " TO {}"
            yield (sql.SQL("GRANT " + privilege) + on + sql.SQL(how).format(_role(role))).as_string(None)


def _role(name: str) -> sql.Composable:
    return sql.SQL(EVERYBODY) if name == EVERYBODY else sql.Identifier(name)


def _comments(living: Table, new: Table) -> Iterator[str]:
    """The statements that give the new table the comments of the living one, on what both of them have."""
    comment = sql.SQL("COMMENT ON {} {} IS {}")
    if living.comment != new.comment:
        yield comment.format(sql.SQL("TABLE"), new.identifier, sql.Literal(living.comment)).as_string(None)
    of_columns = {column.name: column.comment for column in living.columns}
    for column in new.columns:
        theirs = of_columns.get(column.name, column.comment)
        if theirs != column.comment:
            name = sql.Identifier(new.schema, new.name, column.name)
            yield comment.format(sql.SQL("COLUMN"), name, sql.Literal(theirs)).as_string(None)


def exchange(living: Table, new: Table) -> Iterator[sql.Composed]:
    """The statements that exchange both tables; run under our search_path, in this order."""
    yield from _sequences(living, new)
    yield from _parts(living, new)
    yield from _names(sql.SQL("ALTER TABLE {} RENAME TO {}"), living.schema, living.name, new.name)


def _names(rename: sql.SQL, schema: str, one: str, other: str) -> Iterator[sql.Composed]:
    if one != other:
        between = f"pgonce_{uuid4().hex}"
        for old, name in ((one, between), (other, one), (between, other)):
            yield rename.format(sql.Identifier(schema, old), sql.Identifier(name))


def _sequences(living: Table, new: Table) -> Iterator[sql.Composed]:
    """Sequences of the same column change names; one that both tables use belongs to the new one."""
    theirs = {sequence.column: sequence for sequence in new.sequences}
    for ours in living.sequences:
        other = theirs.get(ours.column)
        if other is not None:
            yield from _names(sql.SQL("ALTER SEQUENCE {} RENAME TO {}"), living.schema, ours.name, other.name)
            continue
        for column in (column for column, oid in new.borrowed.items() if oid == ours.oid and not ours.is_identity):
            owner = sql.Identifier(new.schema, new.name, column)
            yield sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(sql.Identifier(living.schema, ours.name), owner)


def _parts(living: Table, new: Table) -> Iterator[sql.Composed]:
    """An index or a constraint that both have keeps its name for the role: ``events_pkey`` is that of ``events``."""
    theirs: dict[str, list[Part]] = defaultdict(list)
    for part in new.parts:
        theirs[part.definition].append(part)
    constraints = []
    for part in living.parts:
        if not theirs[part.definition]:
            continue
        other = theirs[part.definition].pop(0)
        if part.is_index:
            yield from _names(sql.SQL("ALTER INDEX {} RENAME TO {}"), living.schema, part.name, other.name)
        elif part.name != other.name:
            for table, old, now in ((living, part.name, other.name), (new, other.name, part.name)):
                constraints.append((table.identifier, old, f"pgonce_{uuid4().hex}", now))
    # All of them leave their names first: a table may have a constraint of the name that another of its own takes.
    rename = sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}")
    yield from (rename.format(of, sql.Identifier(old), sql.Identifier(third)) for of, old, third, _ in constraints)
    yield from (rename.format(of, sql.Identifier(third), sql.Identifier(now)) for of, _, third, now in constraints)


_MOST_SHOWN = 5


def lock_job_keys(connection: Connection) -> None:
    """
    Wait until no batch job is in its commit, and keep new ones out; before the tables are locked, as a job does.

    A key that is claimed and not yet committed is invisible, and its rows may go into either table.
    """
    connection.execute(text("LOCK TABLE pgonce.batch_jobs IN SHARE ROW EXCLUSIVE MODE"))


def refused_keys(connection: Connection, living: Table, new: Table) -> list[str]:
    """
    The texts that say why the keys cannot go with these tables.

    A sink's name that is not that of its table was given by the user, and nothing says which table it means later on.
    """
    tables = (living, new)
    names, oids = [table.qualified_name for table in tables], [table.oid for table in tables]
    return [
        f"batch jobs with the sinkName {sink!r} have written to {table}, and their keys would not go with it: "
        f"{', '.join(map(repr, keys[:_MOST_SHOWN]))}{', ...' if len(keys) > _MOST_SHOWN else ''}"
        for sink, table, keys in connection.execute(_NAMED_BY_USERS, {"names": names, "oids": oids})
    ]


def keys_of_one_only(connection: Connection, living: Table, new: Table) -> int:
    """How many batch jobs were published into the living table, and not into the new one."""
    names = {"living": living.qualified_name, "new": new.qualified_name}
    oids = {"living_oid": str(living.oid), "new_oid": str(new.oid)}
    return int(connection.execute(_OF_ONE_ONLY, {**names, **oids}).scalar_one())


def exchange_keys(connection: Connection, living: Table, new: Table) -> None:
    """
    Let the keys of each table follow it to the name that it has now.

    A key of a table that had one of these names before stays, unless the same key comes: then it follows its own table
    to its name of today, or goes, if that was dropped.
    """
    # By way of a third name, because both tables may have the same key.
    between = {table.oid: f"pgonce_{uuid4().hex}" for table in (living, new)}
    for table in (living, new):
        was = {"was": table.qualified_name, "name": between[table.oid]}
        connection.execute(_RENAME, {**was, "oid": str(table.oid)})
    for table, now in ((living, new), (new, living)):
        coming = {"was": between[table.oid], "name": now.qualified_name}
        for make_room in _MAKE_ROOM:
            connection.execute(make_room, coming)
        connection.execute(_RENAME, {**coming, "oid": str(table.oid)})


# In one statement, because the skips refer to the jobs: the foreign key is checked when it ends.
_RENAME = text("""
WITH jobs AS (
    UPDATE pgonce.batch_jobs
    SET sink_name = CAST(:name AS text),
        targets = CASE WHEN targets ? CAST(:was AS text)
                  THEN targets - CAST(:was AS text)
                       || jsonb_build_object(CAST(:name AS text), targets -> CAST(:was AS text))
                  ELSE targets END
    WHERE sink_name = CAST(:was AS text)
    AND coalesce(targets ->> CAST(:was AS text), '0') IN ('0', CAST(:oid AS text))
    RETURNING batch_key
)
UPDATE pgonce.batch_job_skips SET sink_name = CAST(:name AS text)
WHERE sink_name = CAST(:was AS text) AND batch_key IN (SELECT batch_key FROM jobs)
""")

_IN_THE_WAY = f"""
WITH in_the_way AS (
    SELECT j.batch_key, (SELECT {QUALIFIED_NAME} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                         WHERE c.oid = CAST(CAST(j.targets ->> j.sink_name AS bigint) AS oid)) AS now
    FROM pgonce.batch_jobs AS j JOIN pgonce.batch_jobs AS o ON o.batch_key = j.batch_key
    WHERE j.sink_name = CAST(:name AS text) AND o.sink_name = CAST(:was AS text)
)
"""
_MAKE_ROOM = (
    # One that its own table has under its name of today as well is a record of the same rows.
    text(f"""{_IN_THE_WAY}
DELETE FROM pgonce.batch_jobs AS j USING in_the_way AS w
WHERE j.sink_name = CAST(:name AS text) AND j.batch_key = w.batch_key
AND (w.now IS NULL
     OR EXISTS (SELECT FROM pgonce.batch_jobs AS o WHERE o.sink_name = w.now AND o.batch_key = w.batch_key
                AND o.targets ->> o.sink_name = j.targets ->> j.sink_name))
"""),
    text(f"""{_IN_THE_WAY},
jobs AS (
    UPDATE pgonce.batch_jobs AS j
    SET sink_name = w.now,
        targets = j.targets - j.sink_name || jsonb_build_object(w.now, j.targets -> j.sink_name)
    FROM in_the_way AS w WHERE j.sink_name = CAST(:name AS text) AND j.batch_key = w.batch_key
)
UPDATE pgonce.batch_job_skips AS s SET sink_name = w.now
FROM in_the_way AS w WHERE s.sink_name = CAST(:name AS text) AND s.batch_key = w.batch_key
"""),
)

_NAMED_BY_USERS = text("""
SELECT j.sink_name, t.key, array_agg(j.batch_key ORDER BY j.committed_at DESC)
FROM pgonce.batch_jobs AS j, jsonb_each_text(j.targets) AS t
WHERE j.sink_name <> ALL (:names) AND NOT j.targets ? j.sink_name
AND (t.key = ANY (:names) OR t.value::bigint = ANY (:oids))
GROUP BY 1, 2 ORDER BY 1, 2
""").bindparams(
    bindparam("names", type_=postgresql.ARRAY(postgresql.TEXT)), bindparam("oids", type_=postgresql.ARRAY(BigInteger))
)

_OF_ONE_ONLY = text("""
SELECT count(*) FROM pgonce.batch_jobs AS j
WHERE (j.sink_name = :living AND coalesce(j.targets ->> j.sink_name, '0') IN (:living_oid, '0')
       OR j.targets ->> j.sink_name = :living_oid) AND NOT EXISTS (
    SELECT FROM pgonce.batch_jobs AS o
    WHERE o.batch_key = j.batch_key
    AND (o.sink_name = :new AND coalesce(o.targets ->> o.sink_name, '0') IN (:new_oid, '0')
         OR o.targets ->> o.sink_name = :new_oid))
""")


def lock_letters(connection: Connection, living: Table, new: Table) -> None:
    """Wait until no session repairs or replays a letter for these tables; before they are locked, as a replay does."""
    names = [living.qualified_name, new.qualified_name]
    of_both = select(dead_letters.c.dead_letter_id).where(dead_letters.c.target.in_(names))
    connection.execute(of_both.order_by(dead_letters.c.dead_letter_id).with_for_update()).all()


def exchange_letters(connection: Connection, living: Table, new: Table) -> None:
    """Let the letters of each table, from every query, name it as it is called now."""
    names = {"one": living.qualified_name, "other": new.qualified_name}
    quoted = {"quoted_one": living.identifier.as_string(None), "quoted_other": new.identifier.as_string(None)}
    connection.execute(_EXCHANGE, {**names, **quoted})


def follow_sink(connection: Connection, query_id: str, was: str, sink_name: str) -> None:
    """Let a query's letters have the name that its sink has now."""
    letters = update(dead_letters).where(dead_letters.c.query_id == query_id, dead_letters.c.sink_name == was)
    connection.execute(letters.values(sink_name=sink_name))


# A letter without a table (its route was unknown) has an empty destination.
_EXCHANGE = text("""
UPDATE pgonce.dead_letters AS l
SET target = t.name,
    destination = CASE WHEN l.destination ->> 'table' IN (t.was, t.quoted_was)
                  THEN jsonb_set(l.destination, '{table}', to_jsonb(t.quoted_name)) ELSE l.destination END
FROM (VALUES (CAST(:one AS text), CAST(:quoted_one AS text), CAST(:other AS text), CAST(:quoted_other AS text)),
             (:other, :quoted_other, :one, :quoted_one)) AS t (was, quoted_was, name, quoted_name)
WHERE l.target = t.was
""")
