"""
What did the user ask for?

Runs in the planner's worker, the commit worker and the driver. Pure, except that an error about startOver asks who
feeds the table. Invariant: an option that is unknown, bad or in conflict with another is refused before any row moves,
and the error suggests the nearest valid name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from pgonce.offsets_store.commit.settings import (
    LOCK_TIMEOUT_SECONDS,
    RETAINED_BATCHES,
    CommitSettings,
    commit_settings,
)
from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.kafka.settings import PREFIX, Brokers, brokers
from pgonce.offsets_store.postgres.backoff import RETRY_SECONDS
from pgonce.offsets_store.postgres.text import refuse_unstorable
from pgonce.offsets_store.verdict.facts import Remedies

from .destination import Destination, Mode, asynchronous_progress, refuse_unfit_positions
from .hints import column_names, refuse_unknown_options
from .position_columns import PositionColumns, position_columns
from .route_options import ROUTE_OPTIONS, parse_where
from .routes import Routes, sink_name_of
from .table_options import TABLE_OPTIONS
from .values import (
    AS_OPTIONS,
    choice,
    executor_url,
    flag,
    number,
    postgres_url,
    starts_over,
)

OffsetsFrom = Literal["checkpoint", "listener"]

# The names as users write them; Spark hands them over in lower case.
OPTIONS = (
    "url",
    "passwordFrom",
    "executorUrl",
    "table",
    *ROUTE_OPTIONS,
    *TABLE_OPTIONS,
    "sinkName",
    "inlineBytes",
    "receiver",
    "pinTable",
    "retainBatches",
    "offsetsFrom",
    "positionColumns",
    "writePositions",
    "bootstrapServers",
    "notifyChannel",
    "adoptCheckpoint",
    "replaces",
    "startOver",
    "independent",
    "lockTimeout",
    "retryTimeout",
)
# Spark's own writer options, which reach every sink.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "path", "outputmode", "truncate", "numrows"})
_SPARK_PREFIXES = ("spark.", "_", "asyncprogresstracking")

DEFAULT_INLINE_BYTES = 8 * 1024 * 1024
# Lower, because sending to a receiver costs a connection where staging costs a table, and because rows that a task
# holds back are not being copied yet.
DEFAULT_INLINE_BYTES_WITH_RECEIVER = 1024 * 1024
SPARKS_ASYNC_INTERVAL_MS = 1000
# Values of ``receiver`` that are not addresses.
AUTOMATIC = "auto"
_NO_RECEIVER = "off"


@dataclass(frozen=True)
class SinkOptions:
    """
    The Data Source's options, parsed.

    ``executor_url`` is how tasks reach Postgres, if not as the driver does; ``inline_bytes`` bounds what one task puts
    in its commit message; ``receiver`` is the address at which a receiver listens, "auto", or None;
    ``async_interval_ms`` is None without asynchronous progress tracking, and 0 if every entry is written.
    """

    commit: CommitSettings
    destination: Destination | Routes
    checkpoint_location: str
    sink_name: str | None = None
    query_name: str | None = None
    inline_bytes: int = DEFAULT_INLINE_BYTES
    receiver: str | None = None
    offsets_from: OffsetsFrom = "checkpoint"
    positions: PositionColumns | None = None
    async_interval_ms: int | None = None
    brokers: Brokers | None = None
    executor_url: str | None = field(default=None, repr=False)

    @property
    def staging_url(self) -> str:
        """How tasks reach Postgres when they stage rows."""
        return self.commit.url if self.executor_url is None else self.executor_url

    @property
    def sink_label(self) -> str:
        """Tells this sink from others before Postgres has been asked which table is meant."""
        return self.sink_name or sink_name_of(self.destination)

    @property
    def has_sparse_log(self) -> bool:
        """Whether Spark writes the offset log only for some batches, and while they run or afterwards."""
        return bool(self.async_interval_ms)


def parse_options(raw: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """
    Options as Spark hands them over (keys in any case); ``overwrite`` is Spark's complete output mode.

    :raises ConfigurationError: if an option is unknown, bad, missing or in conflict with another.
    """
    given = {name.lower(): value for name, value in raw.items()}
    _refuse_unknown(given)
    refuse_unstorable(sinkName=given.get("sinkname"), queryName=given.get("queryname"))
    if not given.get("checkpointlocation"):
        raise bad_option(
            "NO_CHECKPOINT_LOCATION",
            "The option checkpointLocation is not set on this writer. One that is only in the session configuration "
            "(spark.sql.streaming.checkpointLocation) is not shown to a Python data source, and without the "
            "checkpoint's offset log pgonce cannot prove that a batch is a replay.",
            'Set .option("checkpointLocation", ...) on the writer itself.',
        )
    mode = _mode(given, overwrite)
    offsets_from = cast("OffsetsFrom", choice(given, "offsetsFrom", get_args(OffsetsFrom), "checkpoint"))
    positions = _positions(given)
    if positions:
        refuse_unfit_positions(mode, judged_by_ids=offsets_from == "listener")
    receiver = _receiver(given, positions)
    independent = choice(given, "independent", ("true", "false", "byname"), "false")
    url, replaces, sink_name = postgres_url(given), given.get("replaces") or None, given.get("sinkname") or None
    start_over = starts_over(
        given.get("startover"), replaces, url, table=given.get("table", ""), sink_name=sink_name, spelled=AS_OPTIONS
    )
    inline_bytes = DEFAULT_INLINE_BYTES_WITH_RECEIVER if receiver else DEFAULT_INLINE_BYTES
    return SinkOptions(
        commit=commit_settings(
            url=url,
            remedies=Remedies(
                adopt_checkpoint=number(given, "adoptCheckpoint", None, least=0),
                replaces=replaces,
                independent=independent == "true",
                start_over=start_over,
                independent_by_name=independent == "byname",
            ),
            retain_batches=number(given, "retainBatches", RETAINED_BATCHES, least=1),
            lock_timeout=number(given, "lockTimeout", LOCK_TIMEOUT_SECONDS, least=1),
            retry_timeout=number(given, "retryTimeout", RETRY_SECONDS, least=0),
            pin_table=flag(given, "pinTable"),
            notify_channel=given.get("notifychannel"),
        ),
        destination=parse_where(given, mode),
        checkpoint_location=given["checkpointlocation"],
        sink_name=sink_name,
        query_name=given.get("queryname") or None,
        inline_bytes=number(given, "inlineBytes", inline_bytes, least=0),
        receiver=receiver,
        offsets_from=offsets_from,
        positions=positions,
        async_interval_ms=_async_interval(given, positions, offsets_from),
        brokers=brokers(given.get("bootstrapservers") or None, _of_kafka(given)),
        executor_url=executor_url(given),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    # Without brokers of ours, Kafka's settings can only have been meant for the source.
    theirs = (*_SPARK_PREFIXES, PREFIX) if given.get("bootstrapservers") else _SPARK_PREFIXES
    ours = (name for name in given if name not in _SPARK_OPTIONS and not name.startswith(theirs))
    refuse_unknown_options(ours, {name.lower(): name for name in OPTIONS})


def _of_kafka(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name.startswith(PREFIX)}


def _positions(given: Mapping[str, str]) -> PositionColumns | None:
    names = column_names("positionColumns", given.get("positioncolumns", ""))
    if not names:
        if "writepositions" in given:
            raise bad_option(
                "CLASHING_OPTIONS", "writePositions has no effect without positionColumns.", "Set both, or neither."
            )
        return None
    return position_columns(names, written="writepositions" not in given or flag(given, "writePositions"))


def _receiver(given: Mapping[str, str], positions: PositionColumns | None) -> str | None:
    host = given.get("receiver", _NO_RECEIVER).strip()
    if host.lower() in (_NO_RECEIVER, ""):
        return None
    if positions:
        raise bad_option(
            "CLASHING_OPTIONS",
            "receiver and positionColumns are both set, but which rows are stored already is known only once all rows "
            "have arrived.",
            "Leave receiver out.",
        )
    return AUTOMATIC if host.lower() == AUTOMATIC else host


def _async_interval(
    given: Mapping[str, str], positions: PositionColumns | None, offsets_from: OffsetsFrom
) -> int | None:
    if given.get("asyncprogresstrackingenabled", "").lower() != "true":
        return None
    interval = number(given, "asyncProgressTrackingCheckpointIntervalMs", SPARKS_ASYNC_INTERVAL_MS, least=0)
    if offsets_from == "listener" or (interval > 0 and positions is None):
        raise asynchronous_progress()
    return interval


def _mode(given: Mapping[str, str], overwrite: bool) -> str:
    mode = choice(given, "mode", get_args(Mode), "complete" if overwrite else "append")
    if overwrite != (mode == "complete"):
        raise bad_option(
            "CLASHING_OPTIONS",
            f"mode={mode} was given, but Spark's output mode is {'complete' if overwrite else 'append'}.",
            "Leave mode out and use .outputMode('complete'), which replaces the table's rows with every batch."
            if overwrite
            else "For mode=complete, set .outputMode('complete') on the writer.",
        )
    return mode
