"""
What does a row of the batch do to the row of its key that is in the table?

Pure: runs wherever settings are made, and in the commit. Invariant: settings that contradict each other are refused
when they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, cast, get_args

from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.postgres.text import refuse_unstorable

from .hints import column_names

ChangeFeed = Literal["debezium", "delta", "spark"]
"""Feeds whose rows say by themselves what to do: Debezium's envelope, and ``_change_type`` of Delta and Spark."""
Deletes = Literal["hard", "soft", "ignore"]
OnConflict = Literal["update", "ignore"]

DELETED_COLUMN = "pgonce_deleted"
"""The column that says which rows delete, where the frame has none of its own."""
OPERATION = "op"
CHANGE_TYPE = "_change_type"
_OF_CHANGE_TYPES = frozenset({CHANGE_TYPE, "_commit_version", "_commit_timestamp"})

TOMBSTONE_DAYS = 7
"""Kafka keeps records as long by default, so nothing older comes again from there."""
MOST_TOMBSTONE_DAYS = 36_500
"""A century: with millions of days, neither Python nor Postgres could say when a delete may be forgotten."""


class ByKeyOptions(TypedDict, total=False):
    """
    The keyword arguments of ``mode="upsert"`` and ``mode="apply"``, beside keys and order_by.

    ``delete_when`` names a boolean column that is true where a row deletes; ``change_feed`` names a feed whose rows say
    it by themselves. ``deletes`` is ``hard``, ``soft:<column>`` or ``ignore``. With ``only_newer``, a stored row gives
    way only to one whose ``order_by`` is not less, and a delete is remembered for ``tombstone_days``. ``on_conflict``
    is ``update`` or ``ignore``; ``update_columns`` are the only ones that an update changes; a text equal to
    ``keep_where`` (or bytes, or an array, that Debezium makes of it) stands for the value that is stored.
    """

    delete_when: str | None
    change_feed: str | None
    deletes: str
    only_newer: bool
    tombstone_days: int
    on_conflict: str
    update_columns: Sequence[str]
    keep_where: str | None


@dataclass(frozen=True)
class Changes:
    """
    What makes a row of ``mode=apply`` a delete, and what a delete does.

    Either ``delete_when`` or ``feed`` is given, or ``all_delete`` says that every row deletes. ``soft_column`` is the
    column that a soft delete sets.
    """

    delete_when: str | None = None
    feed: ChangeFeed | None = None
    all_delete: bool = False
    deletes: Deletes = "hard"
    soft_column: str | None = None

    @property
    def deleted(self) -> str:
        """The boolean column that is true where a row deletes."""
        return self.delete_when or DELETED_COLUMN

    @property
    def about_changes(self) -> frozenset[str]:
        """Columns that are about the change, not of the row: they are written only if the table has them."""
        of_feed = {"debezium": frozenset({OPERATION}), "delta": _OF_CHANGE_TYPES, "spark": _OF_CHANGE_TYPES}
        return of_feed.get(self.feed or "", frozenset()) | {self.deleted}


@dataclass(frozen=True)
class Existing:
    """What becomes of a stored row when one of its key comes."""

    on_conflict: OnConflict = "update"
    only_newer: bool = False
    tombstone_days: int = TOMBSTONE_DAYS
    update_columns: tuple[str, ...] = ()
    keep_where: str | None = None


def changes(mode: str, options: ByKeyOptions) -> Changes | None:
    """
    A checked :class:`Changes` for ``mode=apply``, None for the other modes.

    :raises ConfigurationError: if the options contradict each other or the mode.
    """
    delete_when, feed = options.get("delete_when"), options.get("change_feed")
    kind, _, column = (options.get("deletes") or "hard").partition(":")
    refuse_unstorable(deleteWhen=delete_when, deletes=column)
    if mode != "apply":
        for name, given in (("deleteWhen", delete_when), ("changeFeed", feed), ("deletes", options.get("deletes"))):
            if given:
                raise bad_option(
                    "CLASHING_OPTIONS", f"{name} has no effect with mode={mode}.", "Use it with mode=apply."
                )
        return None
    which = "Set deleteWhen to a boolean column of the frame, or changeFeed to debezium, delta or spark."
    if not (delete_when or feed):
        raise bad_option("NO_DELETES", "mode=apply needs to know which rows delete.", which)
    if delete_when and feed:
        raise bad_option("CLASHING_OPTIONS", "deleteWhen and changeFeed both say which rows delete.", which)
    if feed and feed not in get_args(ChangeFeed):
        raise bad_option(
            "BAD_OPTION",
            f"changeFeed={feed!r} is not a feed that is known.",
            f"Use one of {', '.join(get_args(ChangeFeed))}; for any other feed, compute a boolean column in Spark and "
            "name it in deleteWhen.",
        )
    if kind not in get_args(Deletes) or bool(column) != (kind == "soft"):
        raise bad_option(
            "BAD_OPTION",
            f"deletes={options.get('deletes')!r} is not a way to delete.",
            "Use hard, ignore, or soft: with the column to set, for example soft:deleted_at.",
        )
    return Changes(delete_when, cast("ChangeFeed | None", feed), False, cast("Deletes", kind), column or None)


def existing(mode: str, order_by: str | None, options: ByKeyOptions) -> Existing:
    """
    A checked :class:`Existing`.

    :raises ConfigurationError: if the options contradict each other or the mode.
    """
    asked = Existing(
        cast("OnConflict", options.get("on_conflict") or "update"),
        bool(options.get("only_newer")),
        options.get("tombstone_days", TOMBSTONE_DAYS),
        column_names("updateColumns", options.get("update_columns") or ()),
        options.get("keep_where"),
    )
    refuse_unstorable(keepWhere=asked.keep_where, updateColumns="".join(asked.update_columns))
    if asked.on_conflict not in get_args(OnConflict):
        raise bad_option("BAD_OPTION", f"onConflict={asked.on_conflict!r} is not allowed.", "Use update or ignore.")
    if not 1 <= asked.tombstone_days <= MOST_TOMBSTONE_DAYS:
        raise bad_option(
            "BAD_OPTION",
            f"tombstoneDays={asked.tombstone_days} is not a number of days from 1 to {MOST_TOMBSTONE_DAYS}.",
            "Set one.",
        )
    if mode not in ("upsert", "apply"):
        for name, given in (
            ("onConflict", options.get("on_conflict")),
            ("onlyNewer", asked.only_newer),
            ("tombstoneDays", options.get("tombstone_days")),
            ("updateColumns", asked.update_columns),
            ("keepWhere", asked.keep_where),
        ):
            if given:
                raise bad_option(
                    "CLASHING_OPTIONS",
                    f"{name} has no effect with mode={mode}.",
                    "Use it with mode=upsert or mode=apply.",
                )
    if asked.only_newer and not order_by:
        raise bad_option(
            "CLASHING_OPTIONS",
            "onlyNewer needs orderBy: nothing else says which of two rows is the newer.",
            "Set orderBy to a column that grows with every change of a key, and that the table has too.",
        )
    if asked.on_conflict == "ignore":
        _refuse_beside_ignore(mode, asked)
    return asked


def _refuse_beside_ignore(mode: str, asked: Existing) -> None:
    for name, given in (
        ("mode=apply", mode == "apply"),
        ("onlyNewer", asked.only_newer),
        ("updateColumns", asked.update_columns),
        ("keepWhere", asked.keep_where is not None),
    ):
        if given:
            raise bad_option(
                "CLASHING_OPTIONS",
                f"onConflict=ignore leaves stored rows as they are, so {name} has no meaning beside it.",
                "Leave one of the two out.",
            )
