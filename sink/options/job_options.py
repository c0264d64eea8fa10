"""
What did the user of a batch job ask for?

Pure: runs in the planner's worker. Invariant: an option that is unknown, bad, for streams only, or in conflict with
another is refused before any row moves; and so is a job without a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, get_args

from pgonce.offsets_store.commit.settings import (
    LOCK_TIMEOUT_SECONDS,
    RETAINED_BATCHES,
    CommitSettings,
    commit_settings,
)
from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.postgres.backoff import RETRY_SECONDS
from pgonce.offsets_store.postgres.text import refuse_unstorable
from pgonce.offsets_store.verdict.facts import Remedies

from .destination import Destination, Mode
from .hints import refuse_unknown_options
from .sink_options import DEFAULT_INLINE_BYTES, OPTIONS
from .table_options import TABLE_OPTIONS, parse_destination
from .values import choice, executor_url, flag, number, postgres_url

# The names as users write them; Spark hands them over in lower case.
JOB_OPTIONS = (
    "url",
    "passwordFrom",
    "executorUrl",
    "table",
    *TABLE_OPTIONS,
    "batchKey",
    "batchHash",
    "sinkName",
    "inlineBytes",
    "notifyChannel",
    "lockTimeout",
    "retryTimeout",
)
_FOR_STREAMS = {name.lower(): name for name in (*OPTIONS, "checkpointLocation", "queryName") if name not in JOB_OPTIONS}
# ``save(path)`` hands over a path.
_SPARK_OPTIONS = frozenset({"path"})
_SPARK_PREFIXES = ("spark.", "_")
# Key and sink name are in one index, whose entries have at most 2,704 bytes.
_LONGEST_KEY = 250


@dataclass(frozen=True)
class JobOptions:
    """
    A batch job's options, parsed.

    ``inline_bytes`` bounds what one task puts in its commit message; ``batch_hash`` if the rows are to be hashed.
    """

    commit: CommitSettings
    destination: Destination
    batch_key: str
    batch_hash: bool = False
    sink_name: str | None = None
    inline_bytes: int = DEFAULT_INLINE_BYTES
    executor_url: str | None = field(default=None, repr=False)
    positions: ClassVar[None] = None
    """Rows of a batch job do not say where in Kafka they come from."""

    @property
    def staging_url(self) -> str:
        """How tasks reach Postgres when they stage rows."""
        return self.commit.url if self.executor_url is None else self.executor_url

    @property
    def sink_label(self) -> str:
        """Tells this sink from others before Postgres has been asked which table is meant."""
        return self.sink_name or self.destination.table


def parse_job_options(raw: Mapping[str, str], *, overwrite: bool) -> JobOptions:
    """
    Options as Spark hands them over (keys in any case); ``overwrite`` is Spark's save mode of that name.

    :raises ConfigurationError: if an option is unknown, bad, missing or in conflict with another.
    """
    given = {name.lower(): value for name, value in raw.items()}
    _refuse_unknown(given)
    batch_key = given.get("batchkey", "")
    refuse_unstorable(sinkName=given.get("sinkname"), batchKey=batch_key)
    if not batch_key.strip():
        raise bad_option(
            "NO_BATCH_KEY",
            "The option batchKey is not set. Without it nothing can tell a retry of this job from a new job, and a "
            "retry would write its rows a second time.",
            'Set batchKey to what names the input of this run, for example .option("batchKey", "2026-11-20"): the '
            "scheduler's logical date, never the time at which the job starts.",
        )
    if len(batch_key) > _LONGEST_KEY:
        raise bad_option(
            "BAD_OPTION",
            f"batchKey has {len(batch_key)} characters, and may have {_LONGEST_KEY}.",
            "Use a shorter name for the job's input.",
        )
    if "deadletters" in given:
        raise bad_option(
            "CLASHING_OPTIONS",
            "deadLetters is for streams, which would stop at a bad row; a batch job can be repaired and run again.",
            "Leave it out; the error of a refused batch names the row and the column.",
        )
    return JobOptions(
        commit=commit_settings(
            url=postgres_url(given),
            remedies=Remedies(),
            retain_batches=RETAINED_BATCHES,
            lock_timeout=number(given, "lockTimeout", LOCK_TIMEOUT_SECONDS, least=1),
            retry_timeout=number(given, "retryTimeout", RETRY_SECONDS, least=0),
            notify_channel=given.get("notifychannel"),
        ),
        destination=parse_destination(given, _mode(given, overwrite)),
        batch_key=batch_key,
        batch_hash=flag(given, "batchHash"),
        sink_name=given.get("sinkname") or None,
        inline_bytes=number(given, "inlineBytes", DEFAULT_INLINE_BYTES, least=0),
        executor_url=executor_url(given),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name in ("route", "tables"):
            raise bad_option(
                "CLASHING_OPTIONS",
                f"{name} is for streams: a batch job (df.write) is published into one table, once for each key.",
                "Write one job a table, with df.where(...) and the same batchKey: each table is a sink of its own.",
            )
        if name in _FOR_STREAMS:
            raise bad_option(
                "CLASHING_OPTIONS",
                f"{_FOR_STREAMS[name]} is an option of streams (df.writeStream), and this is a batch job (df.write).",
                "Leave it out.",
            )
    ours = (name for name in given if name not in _SPARK_OPTIONS and not name.startswith(_SPARK_PREFIXES))
    refuse_unknown_options(ours, {name.lower(): name for name in JOB_OPTIONS})


def _mode(given: Mapping[str, str], overwrite: bool) -> str:
    mode = choice(given, "mode", get_args(Mode), "complete" if overwrite else "append")
    if overwrite != (mode == "complete"):
        raise bad_option(
            "CLASHING_OPTIONS",
            f'mode={mode} was given, but Spark\'s save mode is .mode("{"overwrite" if overwrite else "append"}").',
            'Leave the option mode out: .mode("overwrite") replaces the table\'s rows.'
            if overwrite
            else 'To replace the table\'s rows, leave the option mode out and use .mode("overwrite").',
        )
    return mode
