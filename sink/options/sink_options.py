"""
What the user of a stream or of a batch job asked for.

Made in the planner's worker, the commit worker and the driver; tasks get it from there. Pure. Invariant: an option that
is unknown, bad or in conflict with another is refused before any row moves; and so is a stream without a checkpoint,
and a job without a key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.kafka.settings import Brokers, brokers
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl
from pgonce.offsets_store.verdict.facts import Remedies

from .definitions import AUTOMATIC, DEFAULT_INLINE_BYTES, NO_RECEIVER, OffsetsFrom
from .destination import Destination, destination_of, refuse_columns_alone
from .option import Mode, Way
from .position_columns import PositionColumns, positions_of
from .reading import OF_THE_QUERY, Given, read, refuse_clashes
from .routes import Routes, sink_name_of, where_of

# Less than travels inline, because rows that a task holds are not being copied yet.
CALL_BYTES = 1024 * 1024
RECEIVER_SWITCH = "PGONCE_RECEIVER"
"""The environment variable by which a driver does without receivers, whatever its queries say."""


@dataclass(frozen=True, kw_only=True)
class _ReachingPostgres:
    """
    What the options of a stream and of a batch job have in common.

    ``executor_url`` is how tasks reach Postgres, if not as the driver does; ``inline_bytes`` bounds what one task puts
    in its commit message.
    """

    commit: CommitSettings
    destination: Destination | Routes
    sink_name: str | None = None
    inline_bytes: int = DEFAULT_INLINE_BYTES
    executor_url: str | None = field(default=None, repr=False)

    @property
    def call_bytes(self) -> int:
        """With how many bytes a task calls the receiver, if there is one."""
        return min(self.inline_bytes, CALL_BYTES)

    @property
    def staging_url(self) -> str:
        """How tasks reach Postgres when they stage rows."""
        return self.commit.url if self.executor_url is None else self.executor_url

    @property
    def sink_label(self) -> str:
        """Tells this sink from others before Postgres has been asked which table is meant."""
        return self.sink_name or sink_name_of(self.destination)


@dataclass(frozen=True, kw_only=True)
class SinkOptions(_ReachingPostgres):
    """
    The Data Source's options, parsed.

    ``receiver`` is the address at which a receiver listens, "auto", or None.
    """

    checkpoint_location: str
    query_name: str | None = None
    receiver: str | None = None
    offsets_from: OffsetsFrom = "checkpoint"
    positions: PositionColumns | None = None
    brokers: Brokers | None = None


@dataclass(frozen=True, kw_only=True)
class JobOptions(_ReachingPostgres):
    """
    A batch job's options, parsed; ``batch_hash`` if the rows are to be hashed.

    ``planned_sink`` is the sink's name as Postgres gave it when the job was planned: what tasks stage is known by it,
    because jobs with one key, and one text for the table, may mean tables in several schemas.
    """

    destination: Destination
    batch_key: str
    batch_hash: bool = False
    planned_sink: str | None = None
    positions: ClassVar[None] = None
    """Rows of a batch job do not say where in Kafka they come from."""

    @property
    def sink_label(self) -> str:
        """The sink's name, or what the options call it if Postgres could not be asked for it."""
        return self.planned_sink or super().sink_label


def parse_options(raw: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """Options as Spark hands them over (keys in any case); ``overwrite`` is Spark's complete output mode."""
    given = read(raw, Way.STREAM)
    if "checkpoint_location" not in given:
        raise bad_option(
            "OPTION_MISSING",
            "The option checkpointLocation is not set on this writer. One that is only in the session configuration "
            "(spark.sql.streaming.checkpointLocation) is not shown to a Python data source, and without the "
            "checkpoint's offset log pgonce cannot prove that a batch is a replay.",
            'Set .option("checkpointLocation", ...) on the writer itself.',
        )
    _refuse_asynchronous_progress(raw)
    given["mode"] = _mode(given, overwrite, "Spark's output mode", '.outputMode("complete")')
    given["receiver"] = given["receiver"].strip() or AUTOMATIC
    where = where_of(given)
    if isinstance(where, Routes):
        _refuse_other_output_mode(where, given["mode"])
    return SinkOptions(
        commit=commit_settings_of(given),
        destination=where,
        checkpoint_location=given["checkpoint_location"],
        sink_name=given["sink_name"],
        query_name=given["query_name"],
        inline_bytes=given["inline_bytes"],
        receiver=None if NO_RECEIVER in (given["receiver"], _switch()) else given["receiver"],
        offsets_from=given["offsets_from"],
        positions=positions_of(given),
        brokers=brokers(given["bootstrap_servers"], given["kafka_options"]),
        executor_url=_executor_url(given),
    )


def _switch() -> str | None:
    """What the environment says about receivers: None, or that there are to be none."""
    said = os.environ.get(RECEIVER_SWITCH) or None
    if said not in (None, NO_RECEIVER):
        raise bad_option(
            "BAD_OPTION",
            f"The environment variable {RECEIVER_SWITCH} is {said!r}.",
            f"Set it to {NO_RECEIVER}, so that no query of this driver has a receiver, or not at all.",
        )
    return said


def parse_job_options(raw: Mapping[str, str], *, overwrite: bool) -> JobOptions:
    """Options as Spark hands them over (keys in any case); ``overwrite`` is Spark's save mode of that name."""
    given = read(raw, Way.JOB)
    batch_key = given["batch_key"] or ""
    if not batch_key.strip():
        raise bad_option(
            "OPTION_MISSING",
            "The option batchKey is not set. Without it nothing can tell a retry of this job from a new job, and a "
            "retry would write its rows a second time.",
            'Set batchKey to what names the input of this run, for example .option("batchKey", "2026-11-20"): the '
            "scheduler's logical date, never the time at which the job starts.",
        )
    refuse_columns_alone(given)
    given["mode"] = _mode(given, overwrite, "Spark's save mode", '.mode("overwrite")')
    return JobOptions(
        commit=commit_settings_of(given),
        destination=destination_of(given),
        batch_key=batch_key,
        batch_hash=given["batch_hash"],
        sink_name=given["sink_name"],
        inline_bytes=given["inline_bytes"],
        executor_url=_executor_url(given),
    )


def commit_settings_of(given: Given) -> CommitSettings:
    """How the batches are committed, for every way in."""
    refuse_clashes(given, OF_THE_QUERY)
    return CommitSettings(
        _checked_url(given["url"], given),
        Remedies(given["adopt_checkpoint"], given["replaces"], given["independent"]),
        given["retain_batches"],
        given["lock_timeout"],
        given["retry_timeout"],
        given["pin_table"],
        given["notify_channel"],
    )


def _executor_url(given: Given) -> str | None:
    url = given["executor_url"]
    return None if url is None else _checked_url(url, given)


def _checked_url(url: str, given: Given) -> PostgresUrl:
    # Here, because tasks have no need of libpq for settings that were made elsewhere.
    from pgonce.offsets_store.postgres.connect import parse_url

    parse_url(url)
    return PostgresUrl(url, given["password_from"])


def _mode(given: Given, overwrite: bool, whose: str, chosen_by: str) -> Mode:
    """The write mode, which is complete if and only if Spark's own mode says so."""
    mode: Mode = given.get("mode", "complete" if overwrite else "append")
    if overwrite != (mode == "complete"):
        raise bad_option(
            "CLASHING_OPTIONS",
            f"mode={mode} was given, but {whose} {'is' if overwrite else 'is not'} {chosen_by}.",
            f"Leave the option mode out: {chosen_by} replaces the table's rows.",
        )
    return mode


def _refuse_other_output_mode(where: Routes, mode: Mode) -> None:
    # Spark's output mode is one for the whole stream, and decides which rows come.
    for route in where:
        if (route.destination.mode == "complete") != (mode == "complete"):
            raise bad_option(
                "CLASHING_OPTIONS",
                f"mode={route.destination.mode} was given for {route.value!r} in tables, but Spark's output mode is "
                f"{'complete' if mode == 'complete' else 'append'}.",
                "mode=complete goes with .outputMode('complete'), and then for all tables.",
            )


def _refuse_asynchronous_progress(raw: Mapping[str, str]) -> None:
    for name, value in raw.items():
        if name.lower() == "asyncprogresstrackingenabled" and value.lower() == "true":
            raise bad_option(
                "ASYNC_PROGRESS",
                "Asynchronous progress tracking is on: Spark then writes the entry of a batch into offsets/ late or "
                'never, and without it format("pgonce") does not know which rows the batch reads.',
                "Leave asyncProgressTrackingEnabled out; or use PostgresBatchWriter in foreachBatch, which asks the "
                "query itself, and start it with recover_and_start.",
            )
