"""
Where do a batch's rows go, and how, whichever way in is used?

Pure: runs in the planner's worker, the commit worker and the driver. Invariant: settings that cannot work are refused
when they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.postgres.storable import refuse_unstorable

Mode = Literal["append", "upsert", "complete"]


@dataclass(frozen=True)
class Destination:
    """Where rows go and how: the table as the user wrote it, the write mode, and what an upsert needs."""

    table: str
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    create_table: bool = False


def destination(
    table: str, mode: str, keys: tuple[str, ...], order_by: str | None, *, create_table: bool = False
) -> Destination:
    """
    A checked :class:`Destination`, for every way in.

    :raises ConfigurationError: for a missing table, an unknown mode, or keys that do not go with the mode.
    """
    if not table.strip():
        raise bad_option("NO_TABLE", "No table is given.", 'Set table, for example "events" or "sales.orders".')
    refuse_unstorable(table=table, keys="".join(keys), orderBy=order_by)
    if mode not in get_args(Mode):
        raise bad_option(
            "BAD_OPTION", f"mode={mode!r} is not a way to write.", f"Use one of {', '.join(get_args(Mode))}."
        )
    if mode == "upsert" and not keys:
        raise bad_option("NO_KEYS", "mode=upsert needs keys.", 'Set keys, for example "id" or "region,day".')
    if mode == "append" and keys and not create_table:
        raise bad_option(
            "CLASHING_OPTIONS",
            "keys are given, but mode is append, which does not use them.",
            "Use mode=upsert, or leave keys out (with createTable they become the primary key).",
        )
    if order_by and mode != "upsert":
        raise bad_option("CLASHING_OPTIONS", f"orderBy has no effect with mode={mode}.", "Use it with mode=upsert.")
    if len(set(keys)) != len(keys):
        raise bad_option("BAD_OPTION", f"keys={','.join(keys)} names a column twice.", "Name each key once.")
    return Destination(table.strip(), cast("Mode", mode), keys, order_by, create_table)


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
