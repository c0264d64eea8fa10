"""
Refuse foreign keys whose actions make what a batch leaves depend on how its changes are cut into batches.

Pure; runs before Spark's job and in the commit. Invariant: a batch deletes before it writes, so a row that has moved
away from its parent must not be changed by ``ON DELETE CASCADE``, ``SET NULL`` or ``SET DEFAULT`` of that parent.

Where the changes of one table have an order, they are written one after the other
(:mod:`pgonce.sink.writing.by_key.in_order`). All else is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgonce.offsets_store.errors import NOTHING, TargetError

from ...options.by_key import Changes
from ...options.destination import Destination
from ..table.catalogue import TargetTable

_ACTIONS = "ON DELETE CASCADE, SET NULL or SET DEFAULT"


def deletes_act_on_itself(table: TargetTable, changes: Changes | None) -> bool:
    """Whether a delete may change rows of the same table that the batch writes."""
    return _deletes_and_writes(changes) and table.root in table.deletes_reach


def refuse_unordered_actions(table: TargetTable, destination: Destination) -> None:
    """:raises TargetError: DELETE_ACTION, if deletes change other rows of the table, and changes have no order."""
    if deletes_act_on_itself(table, destination.changes) and destination.order_by is None:
        raise delete_action(
            f"Deleting rows of {table.qualified_name} changes other rows of it, by a foreign key with {_ACTIONS}, and "
            "orderBy is not set: nothing says whether a row had moved away from its parent before the parent was "
            "deleted.",
            "Set orderBy to a column that gives each change a place of its own. Or let",
        )


def refuse_actions_between(tables: Sequence[tuple[TargetTable, Changes | None]]) -> None:
    """:raises TargetError: DELETE_ACTION, if deletes from one of these tables change rows of another one."""
    for table, changes in tables:
        reached = [other for other, _ in tables if other.root != table.root and other.root in table.deletes_reach]
        if reached and _deletes_and_writes(changes):
            raise delete_action(
                f"Deleting rows of {table.qualified_name} changes rows of {reached[0].qualified_name}, by a foreign "
                f"key with {_ACTIONS}, and the query writes both tables. They are written one after the other, so the "
                "delete of a parent would change a row that had moved to another parent before.",
                "Let",
            )


def delete_action(what: str, remedy: str) -> TargetError:
    """The error; ``remedy`` is how the way out begins."""
    return TargetError(
        "DELETE_ACTION",
        what,
        NOTHING,
        f"{remedy} the foreign key have no action here (ON DELETE NO ACTION DEFERRABLE INITIALLY DEFERRED): a change "
        "feed sends the rows that the source's own foreign keys have deleted or changed as changes of their own.",
    )


def _deletes_and_writes(changes: Changes | None) -> bool:
    return changes is not None and changes.deletes == "hard" and not changes.all_delete
