"""
Where do a batch's rows go, and how, whichever way in is used?

Pure: runs in the planner's worker, the commit worker and the driver. Invariant: settings that cannot work are refused
when they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from typing_extensions import Unpack

from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.postgres.text import refuse_unstorable

from .by_key import ByKeyOptions, Changes, Existing, changes, existing
from .values import one_of

Mode = Literal["append", "upsert", "apply", "complete"]
BY_KEY = ("upsert", "apply")
SchemaEvolution = Literal["strict", "addColumns", "ignoreExtra"]

DEAD_LETTERS = "pgonce.dead_letters"
MOST_DEAD_LETTERS = 100
"""Few, because many bad rows at once have a common cause, which should be found first."""


class TableOptions(ByKeyOptions, total=False):
    """
    The keyword arguments that say how rows go into a table, beside mode, keys and order_by.

    ``create_table`` creates the table from the frame's schema if it is missing. ``schema_evolution`` says what becomes
    of columns that the table lacks: ``strict``, ``addColumns`` or ``ignoreExtra``. ``dead_letters`` is the table for
    rows that cannot be written for their own values, or True for the ledger's; at most ``max_dead_letters`` of a batch.
    """

    create_table: bool
    schema_evolution: str
    dead_letters: str | bool | None
    max_dead_letters: int | None


@dataclass(frozen=True)
class DeadLetters:
    """The table for rows that cannot be written for their own values, and how many a batch may have."""

    table: str = DEAD_LETTERS
    most: int = MOST_DEAD_LETTERS


@dataclass(frozen=True)
class Destination:
    """
    Where rows go and how: the table as the user wrote it, the write mode, and what writing by key needs.

    Without ``keys``, the table's primary key tells rows apart. ``aside`` are columns of the rows that are about
    something else than a row of this table, such as the one that chooses among several tables. ``may_be_temporary`` is
    for a function, which may have made a table for a step in between.
    """

    table: str
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    create_table: bool = False
    schema_evolution: SchemaEvolution = "strict"
    changes: Changes | None = None
    existing: Existing = field(default_factory=Existing)
    dead_letters: DeadLetters | None = None
    aside: frozenset[str] = frozenset()
    may_be_temporary: bool = False

    @property
    def order_column(self) -> str | None:
        """The rows' column that ``order_by`` means; a field of Debezium's envelope becomes one of its own name."""
        if self.order_by and self.changes and self.changes.feed == "debezium":
            return self.order_by.rpartition(".")[2]
        return self.order_by

    @property
    def not_of_the_row(self) -> frozenset[str]:
        """Columns of the rows that say what is to be done with a row; a table that is created does not get them."""
        return self.aside | (self.changes.about_changes if self.changes else frozenset())

    @property
    def only_if_there(self) -> frozenset[str]:
        """Columns of the rows that are written only if the table has them."""
        about = self.not_of_the_row
        return about | {self.order_column} if self.order_column and not self.existing.only_newer else about


def destination(
    table: str,
    mode: str = "append",
    keys: Sequence[str] = (),
    order_by: str | None = None,
    **options: Unpack[TableOptions],
) -> Destination:
    """
    A checked :class:`Destination`, for every way in.

    :raises ConfigurationError: for a missing table, an unknown mode, or options that do not go together.
    """
    if not table.strip():
        raise bad_option("NO_TABLE", "No table is given.", 'Set table, for example "events" or "sales.orders".')
    refuse_unstorable(table=table, keys="".join(keys), orderBy=order_by)
    if mode not in get_args(Mode):
        remedy = one_of(str(mode).strip().lower(), get_args(Mode))
        raise bad_option("BAD_OPTION", f"mode={mode!r} is not a way to write.", remedy)
    create_table = options.get("create_table", False)
    if mode in BY_KEY and not keys and create_table:
        raise bad_option(
            "NO_KEYS",
            f"mode={mode} with createTable needs keys, which become the new table's primary key.",
            'Set keys, for example "id" or "region,day".',
        )
    if mode == "append" and keys and not create_table:
        raise bad_option(
            "CLASHING_OPTIONS",
            "keys are given, but mode is append, which does not use them.",
            "Use mode=upsert, or leave keys out (with createTable they become the primary key).",
        )
    if order_by and mode not in BY_KEY:
        raise bad_option(
            "CLASHING_OPTIONS", f"orderBy has no effect with mode={mode}.", "Use it with mode=upsert or mode=apply."
        )
    if len(set(keys)) != len(keys):
        raise bad_option("BAD_OPTION", f"keys={','.join(keys)} names a column twice.", "Name each key once.")
    evolution = options.get("schema_evolution") or "strict"
    if evolution not in get_args(SchemaEvolution):
        raise bad_option(
            "BAD_OPTION",
            f"schemaEvolution={evolution!r} is not allowed.",
            one_of(str(evolution), get_args(SchemaEvolution)),
        )
    return Destination(
        table.strip(),
        cast("Mode", mode),
        tuple(keys),
        order_by,
        create_table,
        cast("SchemaEvolution", evolution),
        changes(mode, options),
        existing(mode, order_by, options),
        _dead_letters(options.get("dead_letters"), options.get("max_dead_letters")),
    )


def _dead_letters(table: str | bool | None, most: int | None) -> DeadLetters | None:
    if table is None or table is False:
        if most is not None:
            raise bad_option(
                "CLASHING_OPTIONS",
                "maxDeadLetters has no effect without deadLetters.",
                "Set deadLetters to true, or to a table.",
            )
        return None
    name = DEAD_LETTERS if table is True else str(table).strip()
    refuse_unstorable(deadLetters=name)
    if not name:
        raise bad_option("BAD_OPTION", "deadLetters is empty.", f"Set it to true, which is {DEAD_LETTERS}, or a table.")
    if most is not None and most < 1:
        raise bad_option("BAD_OPTION", f"maxDeadLetters={most} is less than one row.", "Set 1 or more.")
    return DeadLetters(name, MOST_DEAD_LETTERS if most is None else most)


def asynchronous_progress() -> ConfigurationError:
    """The error for asynchronous progress tracking without position columns, for both ways in."""
    return bad_option(
        "ASYNC_PROGRESS",
        "Asynchronous progress tracking is on, with an interval: Spark then writes the offset log only for some "
        "batches, so a batch that is run again may have another range, and nothing here tells which of its rows are "
        "stored already.",
        "Either name the columns that hold Kafka's topic, partition and offset (positionColumns), so that rows that "
        "are stored already are dropped; or set asyncProgressTrackingCheckpointIntervalMs=0, so that every entry is "
        "written; or remove asyncProgressTrackingEnabled.",
    )


def refuse_unfit_positions(mode: str, *, judged_by_ids: bool = False) -> None:
    """:raises ConfigurationError: if rows cannot be told apart by position."""
    if mode == "complete":
        raise bad_option(
            "CLASHING_OPTIONS",
            "Position columns are given, but the output mode is complete, whose rows do not come from single records.",
            "Leave the position columns out.",
        )
    if judged_by_ids:
        raise bad_option(
            "CLASHING_OPTIONS",
            "Position columns are given with offsetsFrom=listener, which does not tell where a run begins.",
            "Use offsetsFrom=checkpoint, or leave the position columns out.",
        )
