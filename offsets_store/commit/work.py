"""
The work of one commit, and what is known of its tries.

Each way in makes one, and the commit uses it. Invariant: work may be done in several tries; each runs in a transaction
of its own, and at most one of these is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from ..ledger.published import Published
from ..offsets import Offsets
from ..postgres.connect import driver_connection
from ..postgres.search_path import leave_in_tx
from ..verdict.facts import PlannedBatch

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class NamedSink:
    """The name of a sink, and the tables that it may write to, with their oids; None for one that is to be created."""

    name: str
    tables: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class AskedSink:
    """
    A sink about which Postgres was asked: ``read`` returns what it says, once the round trip is over.

    ``name`` is the sink's name if that is known before. Otherwise it is that of the table whose oid the statement keeps
    in the setting ``pgonce.target``.
    """

    read: Callable[[], NamedSink]
    name: str | None = None


NameSink: TypeAlias = "Callable[[Connection], str | AskedSink]"
"""
Names the sink that a batch goes into; called inside the transaction, before our search_path is in force.

A name alone is enough where the tables are not known before something is written to them.
"""


def asked_sink(name_sink: NameSink, connection: Connection) -> AskedSink:
    """What ``name_sink`` asks Postgres, or says at once."""
    found = name_sink(connection)
    return AskedSink(lambda: NamedSink(found), found) if isinstance(found, str) else found


_Whose_contra = TypeVar("_Whose_contra", contravariant=True)


@dataclass(frozen=True)
class Work(Generic[_Whose_contra]):
    """
    What one commit does: ``name_sink`` says which sink it is, ``publish`` writes the rows and says how many.

    ``publish`` gets the micro-batch whose rows they are (``Work[Batch]``), or None for those of a batch job
    (``Work[None]``); and the positions below which rows are stored already, where None means that no row is dropped.
    Both functions run inside the transaction, and again at every try. ``sealed`` is for work that runs SQL of the user,
    and ``has_several_tables`` for work that chooses among tables by the rows. ``publish`` begins under the user's
    search_path; or, if it ``restores_path`` by itself, under ours.
    """

    name_sink: NameSink
    publish: Callable[[Connection, _Whose_contra, Offsets | None], Published]
    sealed: bool = False
    has_several_tables: bool = False
    restores_path: bool = False

    def ready_in_tx(self, connection: Connection) -> None:
        """Let the search_path be in force under which ``publish`` begins; ours is until then."""
        if not self.restores_path:
            leave_in_tx(driver_connection(connection))

    @property
    def is_one_table(self) -> bool:
        """Whether all batches go into one table, so that another one is a change."""
        return not (self.sealed or self.has_several_tables)


@dataclass(frozen=True)
class Named:
    """
    How errors and log lines name what is committed.

    ``short`` is for a sentence (``batch 7``), ``full`` for a line of the log (``batch 7 of query ...``), and ``again``
    says how it is started once more. ``keys`` name it for machines.
    """

    short: str
    full: str
    again: str
    keys: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def begins(self) -> str:
        """``short`` at the beginning of a sentence."""
        return self.short[:1].upper() + self.short[1:]


def named(batch: PlannedBatch) -> Named:
    """The names of a micro-batch."""
    short = f"batch {batch.batch_id}"
    keys: dict[str, str | int] = {
        "query": batch.query_name or batch.query_id,
        "query_id": batch.query_id,
        "batch": batch.batch_id,
    }
    return Named(short, f"{short} of query {batch.query_id}", "start the query again", keys)


@dataclass(frozen=True)
class Done:
    """
    What became of a batch, or a batch job: the name of its verdict, its sink, and what was put into the target.

    ``published`` is None if nothing was written now (``is_skipped``), or if an earlier try has written it and it is
    not known any more how many rows these were.
    """

    verdict: str
    sink_name: str
    published: Published | None
    is_skipped: bool = False


class NotNowError(Exception):
    """Raised by the work of an early transaction whose rows are missing, or are not those that were wanted."""


@dataclass
class Outcome:
    """
    What is known of all tries of one batch.

    It is ``unknown`` from the time when a COMMIT is sent until Postgres has answered it, or a later try has read
    the ledger under the lock on the writer's row (a batch job: on its key). That try gets the lock only when the
    earlier transaction is over.

    ``in_ledger`` tells, when a try has failed, that it failed in a statement on the ledger. Otherwise an error of
    Postgres is about the target or its rows. ``sink_name`` is the sink, once a try has found out, and ``database`` the
    one to which the last try was connected.

    ``sent`` is what the last COMMIT that was sent would publish, and ``done`` what became of the batch.
    """

    unknown: bool = False
    in_ledger: bool = False
    sink_name: str | None = None
    database: str | None = None
    sent: Published | None = None
    done: Done | None = None

    @contextmanager
    def on_ledger(self) -> Iterator[None]:
        """Run the block as a part of the try that reads or writes the ledger."""
        self.in_ledger = True
        yield
        # Not after an error, because the code that handles it asks where it came from.
        self.in_ledger = False

    @contextmanager
    def asking_ledger(self) -> Iterator[None]:
        """Run the block that takes the lock and reads the ledger: what an earlier try has done is known after it."""
        with self.on_ledger():
            yield
        self.unknown = False
