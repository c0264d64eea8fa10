"""
What the planner's worker and the commit worker tell the receiver, and the errors that it tells them.

Runs at both ends. Invariant: secrets go through the receiver's standard input, never through a command line or the
environment; an error says on this side of the line what it said on the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.types import StructType

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.errors import CommitError, PgonceError, without_its_words

from ...identity.from_checkpoint import Origin
from ...options.sink_options import SinkOptions
from .host_process import HostProcess
from .line import SILENT, Identity

if TYPE_CHECKING:
    from ...writing.rooms import Rooms

_log = logging.getLogger("pgonce.receiver")

_ASKED = (
    "The batch was not committed when the ledger was asked. If that process is still running, it may still commit "
    "the batch: rows and offsets together, or neither."
)
_REMEDY = "Start the query again: if the ledger does not have the batch, Spark runs it again from its source."


@dataclass(frozen=True)
class Start:
    """
    The first message: who the receiver is, who may talk to it, where it keeps rows, and with which daemon it ends.

    ``version`` is that of the planner's code. Tasks have the same, and so has the commit, which looks at their parcels.
    """

    identity: Identity | None
    secret: bytes = field(repr=False)
    folder: str
    daemon: HostProcess
    version: str


@dataclass(frozen=True)
class PlannedReception:
    """
    A batch that was planned, with the token of its commit.

    :param struct_type: the columns that are written, as the tasks encode them.
    """

    token: UUID
    options: SinkOptions
    struct_type: StructType
    rooms: Rooms

    @property
    def writer(self) -> tuple[str, str]:
        """What tells writers apart here: a query runs one batch at a time."""
        return self.options.checkpoint_location, self.options.sink_label


def origin_from_message(words: Mapping[str, Any]) -> Origin:
    """The origin that was sent, field by field."""
    planned = words["planned"] and OffsetLogEntry(**words["planned"])
    return Origin(**{**words, "planned": planned})


class ReceiverError(PgonceError):
    """The process on the driver that took the rows of a batch does not have them, or does not answer."""

    shows_no_values = True


class PerhapsCommittedError(ReceiverError):
    """The same, but the batch may have been committed: only the ledger can tell."""


def lost(reason: BaseException, *, at_commit: bool) -> ReceiverError:
    """The error for a receiver that does not answer; ``at_commit`` if it was told already which rows are promised."""
    why = "it was silent for too long" if isinstance(reason, SILENT) else str(reason) or "it hung up"
    what = f"The process on the driver that received this batch's rows does not answer: {why}."
    return PerhapsCommittedError("RECEIVER_LOST", what, _ASKED, _REMEDY) if at_commit else without_rows(what)


def without_rows(what: str) -> ReceiverError:
    """The error for a receiver that does not have what the commit messages promise."""
    return ReceiverError.usual("RECEIVER_LOST", what, _REMEDY)


def not_in_ledger(verdict: str, batch_id: int) -> PerhapsCommittedError:
    """The error for a batch that the receiver calls done, but that the ledger does not have."""
    return PerhapsCommittedError(
        "NOT_IN_LEDGER",
        f"The process on the driver that received the rows of batch {batch_id} says that it is done ({verdict}), but "
        "only the ledger tells.",
        _ASKED,
        f"{_REMEDY} If the database has just been restored or failed over, it may lack other batches too: `pgonce "
        "doctor` finds out. Otherwise report this.",
    )


def in_words(error: Exception) -> PgonceError:
    """
    ``error`` itself if it is one of ours, else one of ours in its place.

    An unexpected error is logged without its text, which may show a row.
    """
    if isinstance(error, PgonceError):
        return error
    # Not as an argument, which the log keeps to one line.
    _log.error(without_its_words(error))
    what = f"The receiver failed with {type(error).__name__}. The driver's standard error has the traceback."
    # It may have failed after COMMIT.
    return PerhapsCommittedError("RECEIVER_FAILED", what, _ASKED, f"{_REMEDY} If this happens again, report it.")


def error_as_message(error: Exception) -> dict[str, Any]:
    """``error`` in a form that goes over the line."""
    said = in_words(error)
    words = [said.code, said.what, said.data, said.remedy]
    return {"kind": type(said).__name__, "words": words, "kept": said.kept, "sink_name": said.sink_name}


def error_from_message(message: Mapping[str, Any]) -> PgonceError:
    """The error that was sent."""
    # By name alone: two kinds of one name would be taken for each other.
    kinds = {kind.__name__: kind for kind in _kinds(PgonceError)}
    error = kinds.get(message["kind"], CommitError)(*message["words"])
    error.kept, error.sink_name = message["kept"], message["sink_name"]
    return error


def _kinds(root: type[PgonceError]) -> Iterator[type[PgonceError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)
