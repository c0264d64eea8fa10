"""
Compare two tables, and let them change places: their names, and what people know by the names.

Pure: runs in the command ``pgonce swap``. Invariant: what a query or a writer of the living table may rely on, and the
new one does not have, is named. Each statement does something to one of the two, to a part of one, or to a sequence
that belongs to one. What is the same for both stays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from uuid import uuid4

from psycopg import sql

from .described_table import EVERYBODY, Column, Part, Sequence, Table


def differences(living: Table, new: Table) -> list[str]:
    """What may break, in words."""
    return [*_columns(living, new), *_order(living, new), *_lacking(living, new)]


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
    """Whoever reads or writes all columns by their order needs the same columns first."""
    names, others = [column.name for column in living.columns], [column.name for column in new.columns]
    if set(names) <= set(others) and others[: len(names)] != names:
        yield f"its columns come in another order: {', '.join(others)}"


def _lacking(living: Table, new: Table) -> Iterator[str]:
    lacking = Counter(part.definition for part in living.parts) - Counter(part.definition for part in new.parts)
    for part in living.parts:
        if lacking[part.definition] > 0 and not part.definition.startswith("NOT NULL "):
            lacking[part.definition] -= 1
            yield f"it lacks {part.name} ({part.definition.strip()})"


Grants = frozenset[tuple[str, str, bool]]


def exchange(living: Table, new: Table) -> Iterator[sql.Composed]:
    """The statements that exchange both tables; run under our search_path, in this order."""
    yield from _grants(living, new)
    yield from _comments(living, new)
    yield from _sequences(living, new)
    yield from _parts(living, new)
    yield from _names(sql.SQL("ALTER TABLE {} RENAME TO {}"), living.schema, living.name, new.name)


def _names(rename: sql.SQL, schema: str, one: str, other: str) -> Iterator[sql.Composed]:
    if one != other:
        between = f"pgonce_{uuid4().hex}"
        for old, name in ((one, between), (other, one), (between, other)):
            yield rename.format(sql.Identifier(schema, old), sql.Identifier(name))


def _grants(living: Table, new: Table) -> Iterator[sql.Composed]:
    if living.grants == new.grants and all(
        column.grants == wanted
        for table, other in ((living, new), (new, living))
        for column, wanted in _wanted(table, other)
    ):
        return
    for table, other in ((living, new), (new, living)):
        what = sql.SQL("TABLE {}").format(table.identifier)
        # To revoke all on the table revokes what was granted on each of its columns, too, from these roles.
        of_columns = {grant for column in table.columns for grant in column.grants}
        yield from _granted(what, table.grants | of_columns, other.grants)
        for column, wanted in _wanted(table, other):
            for role, privilege, grantable in sorted(wanted):
                on_column = sql.SQL("{} ({})").format(sql.SQL(privilege), sql.Identifier(column.name))
                yield _grant(on_column, what, role, grantable=grantable)


def _wanted(table: Table, other: Table) -> Iterator[tuple[Column, Grants]]:
    """Each column, with the grants that it gets: those of the other table's column, or its own if there is none."""
    theirs = {column.name: column.grants for column in other.columns}
    for column in table.columns:
        yield column, theirs.get(column.name, column.grants)


def _granted(what: sql.Composable, before: Grants, wanted: Grants) -> Iterator[sql.Composed]:
    for role in sorted({role for role, _, _ in before}):
        yield sql.SQL("REVOKE ALL ON {} FROM {} CASCADE").format(what, _role(role))
    for role, privilege, grantable in sorted(wanted):
        yield _grant(sql.SQL(privilege), what, role, grantable=grantable)


def _grant(privilege: sql.Composable, what: sql.Composable, role: str, *, grantable: bool) -> sql.Composed:
    how = sql.SQL(" WITH GRANT OPTION" if grantable and role != EVERYBODY else "")
    return sql.SQL("GRANT {} ON {} TO {}{}").format(privilege, what, _role(role), how)


def _role(name: str) -> sql.Composable:
    return sql.SQL(EVERYBODY) if name == EVERYBODY else sql.Identifier(name)


def _comments(living: Table, new: Table) -> Iterator[sql.Composed]:
    if living.comment != new.comment:
        for table, comment in ((living, new.comment), (new, living.comment)):
            yield sql.SQL("COMMENT ON TABLE {} IS {}").format(table.identifier, sql.Literal(comment))
    of_columns = {column.name: column.comment for column in living.columns}
    for column in new.columns:
        theirs = of_columns.get(column.name, column.comment)
        if theirs != column.comment:
            for table, comment in ((living, column.comment), (new, theirs)):
                name = sql.Identifier(table.schema, table.name, column.name)
                yield sql.SQL("COMMENT ON COLUMN {} IS {}").format(name, sql.Literal(comment))


def _sequences(living: Table, new: Table) -> Iterator[sql.Composed]:
    """Sequences of the same column change names and grants; one that both tables use belongs to the new one."""
    theirs = {sequence.column: sequence for sequence in new.sequences}
    for ours in living.sequences:
        other = theirs.get(ours.column)
        if other is not None:
            yield from _both_sequences(living.schema, ours, other)
            continue
        for column in (column for column, oid in new.borrowed.items() if oid == ours.oid and not ours.is_identity):
            owner = sql.Identifier(new.schema, new.name, column)
            yield sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(sql.Identifier(living.schema, ours.name), owner)


def _both_sequences(schema: str, ours: Sequence, other: Sequence) -> Iterator[sql.Composed]:
    if ours.grants != other.grants:
        for sequence, wanted in ((ours, other.grants), (other, ours.grants)):
            what = sql.SQL("SEQUENCE {}").format(sql.Identifier(schema, sequence.name))
            yield from _granted(what, sequence.grants, wanted)
    if ours.comment != other.comment:
        for sequence, comment in ((ours, other.comment), (other, ours.comment)):
            name = sql.Identifier(schema, sequence.name)
            yield sql.SQL("COMMENT ON SEQUENCE {} IS {}").format(name, sql.Literal(comment))
    yield from _names(sql.SQL("ALTER SEQUENCE {} RENAME TO {}"), schema, ours.name, other.name)


def _parts(living: Table, new: Table) -> Iterator[sql.Composed]:
    """An index or a constraint that both have keeps its name for the role: ``events_pkey`` is that of ``events``."""
    theirs: dict[str, list[Part]] = defaultdict(list)
    for part in new.parts:
        theirs[part.definition].append(part)
    for part in living.parts:
        if not theirs[part.definition]:
            continue
        other = theirs[part.definition].pop(0)
        if part.is_index:
            yield from _names(sql.SQL("ALTER INDEX {} RENAME TO {}"), living.schema, part.name, other.name)
        elif part.name != other.name:
            yield from _constraints(living, part.name, new, other.name)


def _constraints(living: Table, name: str, new: Table, other: str) -> Iterator[sql.Composed]:
    rename = sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}")
    # By way of a third name each, because a table may have a constraint of the other's name already.
    between = {table.oid: f"pgonce_{uuid4().hex}" for table in (living, new)}
    for table, old in ((living, name), (new, other)):
        yield rename.format(table.identifier, sql.Identifier(old), sql.Identifier(between[table.oid]))
    for table, now in ((living, other), (new, name)):
        yield rename.format(table.identifier, sql.Identifier(between[table.oid]), sql.Identifier(now))
