"""
Find the queries that feed two tables which are to be exchanged, and let them go on under other names.

Runs in the command ``pgonce swap``. Invariant: a writer goes on with the table that has its rows, under any name that
it is called: its next batch is refused until the query is told the new name.

The new table has caught up only if stored offsets say so: its query has begun where the one of the living table has, or
before, has got as far, and has left nothing out because a person accepted that. Offsets that do not say which rows they
stand for are not compared. The rows of a query that was retired are in the living table still, so they count as well,
until it is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, literal, not_, select, update

from ..ledger.lock import NEEDED
from ..ledger.tables import batches, interventions, writers
from ..ledger.writers import COUNTS_AS_FEEDER, IS_LIVING, feeds, writers_in_tx
from ..offsets import Offsets, by_partition, kafka_positions, same, says_which_rows, tells_which_rows
from ..verdict.facts import Writer
from .described_table import Table


@dataclass(frozen=True)
class Feeding:
    """
    A writer of one of the tables: a living one, or one that was retired. ``oid`` is the table that has its rows.

    ``exchanged`` are the oids of the two tables of its newest swap; empty if there was none, or if that has undone the
    one before.
    """

    writer: Writer
    oid: int
    reach: Reach
    exchanged: frozenset[int] = frozenset()

    @property
    def label(self) -> str:
        """The query as people know it."""
        writer = self.writer
        return f"query {writer.query_id} ({writer.query_name or 'no name'}), sink {writer.sink_name!r}"


def feeding(connection: Connection, table: Table, *, lock: bool = False) -> list[Feeding]:
    """The living writers of a table, in the order of their keys; with their rows locked, if that is wanted."""
    found = writers_in_tx(connection, IS_LIVING, feeds({table.qualified_name: table.oid}), lock=lock)
    by_key = sorted(found, key=lambda writer: writer.writer_id)
    return [_feeding(connection, writer, table.oid) for writer in by_key]


def retired_feeding(connection: Connection, table: Table) -> list[Feeding]:
    """The writers of a table that were retired and not forgotten."""
    feeds_it = feeds({table.qualified_name: table.oid})
    found = writers_in_tx(connection, COUNTS_AS_FEEDER, not_(IS_LIVING), feeds_it)
    return [_feeding(connection, writer, table.oid) for writer in found]


def _feeding(connection: Connection, writer: Writer, oid: int) -> Feeding:
    newest = (
        select(interventions.c.details)
        .where(interventions.c.writer_id == writer.writer_id, interventions.c.kind == "swap")
        .order_by(interventions.c.intervention_id.desc())
        .limit(1)
    )
    details = connection.execute(newest).scalar_one_or_none()
    # Swaps of earlier versions do not say which tables they have exchanged.
    exchanged = details.get("exchanged", ()) if details and not details["back"] else ()
    since, is_known = _since_it_began(connection, writer.writer_id)
    start = _start(connection, since[-1]) if is_known else None
    reach = Reach(writer.stored_to, writer.topic_ids, start, _accepted(connection, since))
    return Feeding(writer, oid, reach, frozenset(exchanged))


def _since_it_began(connection: Connection, writer_id: int) -> tuple[list[int], bool]:
    """
    The writer, and those whose places were taken, back to the one that wrote the first of the table's rows.

    The second answer is whether the last of them is that one; otherwise it is not recorded any more which one it was.
    """
    found: list[int] = []
    while writer_id not in found:
        found.append(writer_id)
        writer = connection.execute(select(writers).where(writers.c.writer_id == writer_id)).one()
        over = select(interventions.c.intervention_id).where(
            interventions.c.writer_id == writer_id, interventions.c.kind == "start-over"
        )
        if writer.replaces is None or connection.execute(over.limit(1)).one_or_none():
            break
        earlier = select(writers.c.writer_id).where(
            writers.c.query_id == writer.replaces, writers.c.replaced_by == writer.query_id
        )
        replaced = connection.execute(earlier).scalars().all()
        if len(replaced) != 1:
            return found, False
        writer_id = replaced[0]
    return found, True


def _start(connection: Connection, writer_id: int) -> Offsets | None:
    """
    Where the first batch of a writer began.

    None if that is not recorded, or no longer recorded; or if the query has run with another sink before.
    """
    first = select(batches.c.start_offsets).where(
        batches.c.writer_id == writer_id,
        batches.c.generation == 0,
        batches.c.batch_id == 0,
        # Another sink has written that one's rows.
        batches.c.transport != "adopted",
    )
    start: Offsets | None = connection.execute(first).scalar_one_or_none()
    return start


def _accepted(connection: Connection, writer_ids: Sequence[int]) -> tuple[int, ...]:
    """The batches of these writers that a person has accepted, though they do not follow the one before them."""
    accepted = select(interventions.c.batch_id).where(
        interventions.c.writer_id.in_(writer_ids),
        interventions.c.kind == "accept",
        interventions.c.used_at.is_not(None),
        # Earlier versions did not note whether it was needed.
        func.coalesce(interventions.c.details[NEEDED].as_boolean(), literal(True)),
    )
    return tuple(connection.execute(accepted.order_by(interventions.c.intervention_id)).scalars().all())


def refused_feeding(
    connection: Connection, living: Sequence[Feeding], new: Sequence[Feeding], named_as: Mapping[int, Table]
) -> list[str]:
    """The texts that say why these writers cannot go on with their tables under the names of others."""
    if not living and not new:
        return ["no query of pgonce feeds either of them; rename such tables with ALTER TABLE instead"]
    both = {feeder.writer.writer_id for feeder in living} & {feeder.writer.writer_id for feeder in new}
    queries = {feeder.writer.query_id for feeder in living} & {feeder.writer.query_id for feeder in new}
    reasons = [f"query {query} feeds both of them" for query in sorted(queries)]
    reasons += [
        f"{feeder.label} writes to several tables in one transaction: {', '.join(targets)}"
        for feeder in (*living, *new)
        if len(targets := feeder.writer.targets or {}) > 1 and feeder.writer.writer_id not in both
    ]
    names = [table.qualified_name for table in named_as.values()]
    return reasons + _known_under_both(connection, (*living, *new), names)


def _known_under_both(connection: Connection, feeders: Sequence[Feeding], names: Sequence[str]) -> list[str]:
    """The queries that have a retired or replaced writer of the name that they would go on with."""
    found = connection.execute(
        select(writers.c.query_id, writers.c.sink_name)
        .where(writers.c.query_id.in_([feeder.writer.query_id for feeder in feeders]))
        .where(writers.c.sink_name.in_(names))
        .where(writers.c.writer_id.not_in([feeder.writer.writer_id for feeder in feeders]))
    )
    return [f"query {row.query_id} has also fed {row.sink_name}, and was retired or replaced there" for row in found]


def can_follow(connection: Connection, retired: Feeding, named_as: Mapping[int, Table]) -> bool:
    """
    Whether a retired writer can go with its table, as :func:`follow` does it.

    It stays under its old name if its rows may be in other tables as well, or if its query has another writer of the
    new name.
    """
    now = named_as[retired.oid]
    (was,) = (table for table in named_as.values() if table is not now)
    named_so = select(writers.c.writer_id).where(
        writers.c.query_id == retired.writer.query_id, writers.c.sink_name == now.qualified_name
    )
    is_of_it_alone = retired.writer.targets == {was.qualified_name: retired.oid}
    return is_of_it_alone and connection.execute(named_so).first() is None


def follow(connection: Connection, feeder: Feeding, named_as: Mapping[int, Table]) -> str:
    """
    Let a writer go on with its table under the name that it has now, and return its sink's name.

    :param named_as: the table whose name each one has now, by oid.
    """
    now = named_as[feeder.oid]
    (was,) = (table for table in named_as.values() if table is not now)
    one, other = was.qualified_name, now.qualified_name
    sink = {one: other, other: one}.get(feeder.writer.sink_name, feeder.writer.sink_name)
    of_this = writers.c.writer_id == feeder.writer.writer_id
    written_as = connection.execute(select(writers.c.written_as).where(of_this)).scalar_one()
    connection.execute(
        update(writers)
        .where(of_this)
        .values(
            sink_name=sink,
            targets={other: feeder.oid},
            swapped_from=feeder.writer.sink_name,
            written_as=_under_another_name(written_as, was, now),
        )
    )
    return sink


def _under_another_name(written_as: Any, was: Table, now: Table) -> Any:
    """How the last batch was written, so that a look before the next one looks at the table that it will write."""
    how = ((written_as or {}).get("tables") or {}).get(was.qualified_name)
    if how is None:
        return written_as
    # The digest stays: under the new name the next batch has another one, and records it.
    return {**written_as, "tables": {now.qualified_name: {**how, "table": now.identifier.as_string(None)}}}


@dataclass(frozen=True)
class Reach:
    """
    Which part of its sources a writer has stored, and the ids of the topics that it reads, as far as these are known.

    ``start`` is where the first batch of its rows began; None if no record tells. A person has ``accepted`` batches
    that may leave some of the source out.
    """

    offsets: Offsets | None
    topic_ids: dict[str, str]
    start: Offsets | None = None
    accepted: tuple[int, ...] = ()


class NotComparableError(Exception):
    """Nothing proves whether the new table has caught up; the text says why."""


def missing(living: Sequence[Reach], new: Sequence[Reach]) -> list[str]:
    """
    The texts for what the writers of the living table have stored last and those of the new one have not; empty if
    nothing is missing.

    :raises NotComparableError: if that cannot be told, or the writers of the new table have begun later.
    """
    if not living or not new:
        raise NotComparableError(f"no query feeds the {'new' if living else 'living'} table")
    if accepted := [str(batch_id) for reach in new for batch_id in reach.accepted]:
        raise NotComparableError(
            f"batch {', '.join(accepted)} of its query was accepted by hand (`pgonce accept`), and rows before it may "
            "be missing"
        )
    if all(says_which_rows(end.offsets) for end in (*living, *new)):
        _refuse_other_topics(living, new)
        behind = _behind(_positions(living, max), _positions(new, min))
        if not behind:
            _refuse_later_start(living, new)
        return behind
    if len(living) == len(new) == 1 and _is_same(living[0].offsets, new[0].offsets):
        if not _is_same(living[0].start, new[0].start):
            raise NotComparableError("there is no record that both queries began at the same place")
        return []
    raise NotComparableError("their stored offsets do not tell which rows were read")


def retired_ahead(retired: Iterable[Feeding], new: Iterable[Feeding]) -> list[Feeding]:
    """The retired writers that have stored something that those of the new table have not."""
    stored = _positions((feeder.reach for feeder in new), min)
    return [feeder for feeder in retired if _behind(_positions([feeder.reach], max), stored)]


def _positions(ends: Iterable[Reach], choose: Callable[[int, int], int]) -> dict[tuple[str, int], int]:
    """The position of each partition; of several writers of one table, the one that counts."""
    found: dict[tuple[str, int], int] = {}
    for end in ends:
        for _, topic, partition, position in kafka_positions(end.offsets or {}):
            place = topic, partition
            found[place] = choose(position, found.get(place, position))
    return found


def _behind(living: dict[tuple[str, int], int], new: dict[tuple[str, int], int]) -> list[str]:
    return [
        f"{topic}-{partition} is stored up to {end}, but in the new table up to "
        f"{new.get((topic, partition), 'nothing')}"
        for (topic, partition), end in sorted(living.items())
        if new.get((topic, partition), -1) < end
    ]


def _refuse_later_start(living: Sequence[Reach], new: Sequence[Reach]) -> None:
    """:raises NotComparableError: unless each writer of the new table began where those of the living one did."""
    starts = [by_partition(reach.start) for reach in new if reach.start is not None]
    if len(starts) < len(new):
        raise NotComparableError("there is no record any more of where the query that fills the new table began")
    later = []
    for place in sorted({place for reach in living for place in by_partition(reach.offsets)}):
        # A partition that was added later is read from its beginning. Where no record tells any more when the living
        # table's query began, that may also have been at the beginning.
        began = min(by_partition(reach.start).get(place, 0) for reach in living)
        begins = max(start.get(place, 0) for start in starts)
        if begins > began:
            since = f"from {began} on" if all(reach.start is not None for reach in living) else "perhaps from 0 on"
            later.append(f"{place[0]}-{place[1]} is stored {since}, but in the new table only from {begins} on")
    if later:
        raise NotComparableError(f"its query began later: {'; '.join(later)}")


def _refuse_other_topics(living: Iterable[Reach], new: Iterable[Reach]) -> None:
    """:raises NotComparableError: if a topic was deleted and created again between the two."""
    known = {topic: of for end in living for topic, of in end.topic_ids.items()}
    others = sorted({topic for end in new for topic, of in end.topic_ids.items() if known.get(topic, of) != of})
    if others:
        raise NotComparableError(f"a topic was deleted and created again between them: {', '.join(others)}")


def _is_same(living: Offsets | None, new: Offsets | None) -> bool:
    return bool(living) and all(map(tells_which_rows, (living or {}).values())) and same(living, new)
