"""
What did the user ask for?

Pure: runs in the planner's worker, the commit worker and the driver. Invariant: an option that is unknown, bad or
in conflict with another is refused before any row moves, with the nearest right name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from offsets_store.errors import ConfigurationError
from offsets_store.verdict import Remedies

Mode = Literal["append", "upsert", "complete"]
OffsetsFrom = Literal["checkpoint", "listener"]

# The names as users write them; Spark hands them over in lower case.
OPTIONS = (
    "url",
    "table",
    "mode",
    "keys",
    "orderBy",
    "sinkName",
    "inlineBytes",
    "createTable",
    "retainBatches",
    "offsetsFrom",
    "adoptCheckpoint",
    "replaces",
    "independent",
    "lockTimeout",
    "retryTimeout",
)
# Spark's own writer options, which reach every sink.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "path", "outputmode", "truncate", "numrows"})
_SPARK_PREFIXES = ("spark.", "_", "asyncprogresstracking")

DEFAULT_INLINE_BYTES = 8 * 1024 * 1024
LEAST_RETAINED_BATCHES = 100


def bad_option(code: str, what: str, remedy: str) -> ConfigurationError:
    """An error about an option; whatever it is, no row has moved."""
    return ConfigurationError(code, what, "Nothing was written.", remedy)


@dataclass(frozen=True)
class CommitSettings:
    """What the commit needs to know, whichever way the rows come in. Times are in seconds."""

    url: str = field(repr=False)
    remedies: Remedies = field(default_factory=Remedies)
    retain_batches: int = 1000
    lock_timeout: float = 30.0
    retry_timeout: float = 60.0


@dataclass(frozen=True)
class Destination:
    """Where rows go and how: the table as the user wrote it, the write mode, and what an upsert needs."""

    table: str
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    create_table: bool = False


@dataclass(frozen=True)
class SinkOptions:
    """The Data Source's options, parsed; ``inline_bytes`` bounds what one task puts in its commit message."""

    commit: CommitSettings
    destination: Destination
    checkpoint_location: str
    sink_name: str | None = None
    query_name: str | None = None
    inline_bytes: int = DEFAULT_INLINE_BYTES
    offsets_from: OffsetsFrom = "checkpoint"


def parse_options(raw: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """
    Options as Spark hands them over (keys in any case); ``overwrite`` is Spark's complete output mode.

    :raises ConfigurationError: for what is unknown, bad, missing or in conflict.
    """
    given = {name.lower(): value for name, value in raw.items()}
    _refuse_unknown(given)
    _refuse_async_progress(given)
    if not given.get("checkpointlocation"):
        raise bad_option(
            "NO_CHECKPOINT_LOCATION",
            "The option checkpointLocation is not set on this writer. One that only the session configuration "
            "(spark.sql.streaming.checkpointLocation) names is not shown to a Python data source, and without the "
            "checkpoint's offset log no replay can be proven.",
            'Set .option("checkpointLocation", ...) on the writer itself.',
        )
    return SinkOptions(
        commit=commit_settings(
            url=given.get("url", ""),
            remedies=Remedies(
                adopt_checkpoint=_number(given, "adoptCheckpoint", None, least=0),
                replaces=given.get("replaces") or None,
                independent=_flag(given, "independent"),
            ),
            retain_batches=_number(given, "retainBatches", 1000, least=1),
            lock_timeout=_number(given, "lockTimeout", 30, least=1),
            retry_timeout=_number(given, "retryTimeout", 60, least=0),
        ),
        destination=destination(
            table=given.get("table", ""),
            mode=_mode(given, overwrite),
            keys=_columns(given.get("keys", "")),
            order_by=given.get("orderby") or None,
            create_table=_flag(given, "createTable"),
        ),
        checkpoint_location=given["checkpointlocation"],
        sink_name=given.get("sinkname") or None,
        query_name=given.get("queryname") or None,
        inline_bytes=_number(given, "inlineBytes", DEFAULT_INLINE_BYTES, least=0),
        offsets_from=cast("OffsetsFrom", _choice(given, "offsetsFrom", get_args(OffsetsFrom), "checkpoint")),
    )


def destination(
    table: str, mode: str, keys: tuple[str, ...], order_by: str | None, *, create_table: bool = False
) -> Destination:
    """
    A checked :class:`Destination`, for every way in.

    :raises ConfigurationError: for a missing table, an unknown mode, or keys that do not go with the mode.
    """
    if not table.strip():
        raise bad_option("NO_TABLE", "No table is given.", 'Set table, for example "events" or "sales.orders".')
    if mode not in get_args(Mode):
        raise bad_option("BAD_OPTION", f"mode={mode!r} is not a way to write.", f"Use one of {_list(get_args(Mode))}.")
    if mode == "upsert" and not keys:
        raise bad_option("NO_KEYS", "mode=upsert needs keys.", 'Set keys, for example "id" or "region,day".')
    if mode == "append" and keys and not create_table:
        raise bad_option(
            "CLASHING_OPTIONS",
            "keys are given, but mode is append, which does not use them.",
            "Use mode=upsert, or leave keys out (with createTable they become the primary key).",
        )
    if order_by and mode != "upsert":
        raise bad_option("CLASHING_OPTIONS", f"orderBy means nothing for mode={mode}.", "Use it with mode=upsert.")
    if len(set(keys)) != len(keys):
        raise bad_option("BAD_OPTION", f"keys={','.join(keys)} names a column twice.", "Name each key once.")
    return Destination(table.strip(), cast("Mode", mode), keys, order_by, create_table)


def commit_settings(
    url: str, remedies: Remedies, *, retain_batches: int, lock_timeout: float, retry_timeout: float
) -> CommitSettings:
    """
    Checked :class:`CommitSettings`, for every way in.

    :raises ConfigurationError: for too few records kept, times that mean nothing, or remedies that exclude each other.
    """
    if retain_batches < LEAST_RETAINED_BATCHES:
        raise bad_option(
            "BAD_OPTION",
            f"retainBatches={retain_batches} is too small: Spark keeps 100 batches in a checkpoint and may run "
            "them again.",
            f"Use at least {LEAST_RETAINED_BATCHES}.",
        )
    if lock_timeout <= 0 or retry_timeout < 0:
        raise bad_option(
            "BAD_OPTION",
            f"lockTimeout={lock_timeout:g} and retryTimeout={retry_timeout:g} are not times to wait, in seconds.",
            "Give lockTimeout more than 0, and retryTimeout 0 or more.",
        )
    if sum((remedies.adopt_checkpoint is not None, remedies.replaces is not None, remedies.independent)) > 1:
        raise bad_option(
            "CLASHING_OPTIONS",
            "adoptCheckpoint, replaces and independent exclude each other: each says another thing of the "
            "query's past.",
            "Keep the one that is true.",
        )
    return CommitSettings(url, remedies, retain_batches, lock_timeout, retry_timeout)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in given:
        if name in known or name in _SPARK_OPTIONS or name.startswith(_SPARK_PREFIXES):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"Did you mean {known[near[0]]}? " if near else ""
        raise bad_option("UNKNOWN_OPTION", f"There is no option {name!r}.", f"{hint}The options are {_list(OPTIONS)}.")


def _refuse_async_progress(given: Mapping[str, str]) -> None:
    if given.get("asyncprogresstrackingenabled", "").lower() == "true":
        raise bad_option(
            "ASYNC_PROGRESS",
            "Asynchronous progress tracking is on. Spark then writes the offset log beside or after the batch, so a "
            "batch that is run again may have another range, and no replay can be proven.",
            "Remove asyncProgressTrackingEnabled from this writer.",
        )


def _mode(given: Mapping[str, str], overwrite: bool) -> str:
    mode = _choice(given, "mode", get_args(Mode), "complete" if overwrite else "append")
    if overwrite != (mode == "complete"):
        raise bad_option(
            "CLASHING_OPTIONS",
            f"mode={mode} was given, but Spark's output mode is {'complete' if overwrite else 'append'}.",
            "Leave mode out and use .outputMode('complete'), which replaces the table's rows with every batch."
            if overwrite
            else "For mode=complete, set .outputMode('complete') on the writer.",
        )
    return mode


def _choice(given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(name.lower(), default).strip().lower()
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise bad_option("BAD_OPTION", f"{name}={value!r} is not allowed.", f"{hint}Use one of {_list(allowed)}.")
    return value


def _flag(given: Mapping[str, str], name: str) -> bool:
    return _choice(given, name, ("true", "false"), "false") == "true"


def _number(given: Mapping[str, str], name: str, default: int | None, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default  # type: ignore[return-value]
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise bad_option("BAD_OPTION", f"{name}={text!r} is not a whole number from {least}.", "Give such a number.")
    return value


def _columns(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
