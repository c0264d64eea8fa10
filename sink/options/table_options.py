"""
Which of the options that Spark hands over say how rows go into the table?

Pure: runs in the planner's worker, the commit worker and the driver. Invariant: an option means the same here as the
keyword argument of the same name does in ``foreachBatch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from .by_key import TOMBSTONE_DAYS, OnConflict
from .destination import Destination, SchemaEvolution, TableOptions, destination
from .hints import column_names
from .values import choice, flag, number

# The names as users write them.
TABLE_OPTIONS = (
    "mode",
    "keys",
    "orderBy",
    "createTable",
    "deleteWhen",
    "changeFeed",
    "deletes",
    "onlyNewer",
    "tombstoneDays",
    "onConflict",
    "updateColumns",
    "keepWhere",
    "schemaEvolution",
    "deadLetters",
    "maxDeadLetters",
)


def parse_destination(given: Mapping[str, Any], mode: str) -> Destination:
    """
    Where rows go, from options whose names are in lower case; lists of columns may be texts or sequences.

    :raises ConfigurationError: if an option is bad, missing or in conflict with another.
    """
    return destination(
        given.get("table", ""),
        mode,
        column_names("keys", given.get("keys", "")),
        given.get("orderby") or None,
        **_how(given),
    )


def _how(given: Mapping[str, Any]) -> TableOptions:
    how = TableOptions(
        create_table=flag(given, "createTable"),
        delete_when=given.get("deletewhen") or None,
        change_feed=given.get("changefeed", "").strip().lower() or None,
        only_newer=flag(given, "onlyNewer"),
        update_columns=column_names("updateColumns", given.get("updatecolumns", "")),
        keep_where=given.get("keepwhere"),
    )
    # Not given is another thing than the default, which has no meaning in every mode.
    if "deletes" in given:
        how["deletes"] = given["deletes"].strip()
    if "tombstonedays" in given:
        how["tombstone_days"] = number(given, "tombstoneDays", TOMBSTONE_DAYS, least=1)
    if "onconflict" in given:
        how["on_conflict"] = choice(given, "onConflict", get_args(OnConflict), "update")
    if "schemaevolution" in given:
        how["schema_evolution"] = _one_of(given["schemaevolution"], get_args(SchemaEvolution))
    if "deadletters" in given:
        word = given["deadletters"].strip()
        how["dead_letters"] = {"true": True, "false": False}.get(word.lower(), word)
    if "maxdeadletters" in given:
        how["max_dead_letters"] = number(given, "maxDeadLetters", 1, least=1)
    return how


def _one_of(value: str, allowed: tuple[str, ...]) -> str:
    """``value`` in the case in which it is allowed, or as it is; what is not allowed is refused later."""
    return next((word for word in allowed if word.lower() == value.strip().lower()), value)
