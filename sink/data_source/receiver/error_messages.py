"""
What can go wrong with a receiver, and how do errors get from its process to the commit worker?

Runs at both ends. Invariant: an error says on this side of the line what it said on the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pgonce.offsets_store.errors import NOTHING, CommitError, PgonceError, without_its_words

from .line import SILENT

_log = logging.getLogger("pgonce.receiver")

_ASKED = (
    "The batch was not committed when the ledger was asked. If that process is still running, it may commit the batch "
    "yet: rows and offsets together, or neither."
)
_REMEDY = "Start the query again: Spark runs the batch again from its source."


class ReceiverError(PgonceError):
    """The process on the driver that took the rows of a batch does not have them, or does not answer."""

    @property
    def leaves_unknown(self) -> bool:
        """Whether the batch may have been committed all the same, which only the ledger tells."""
        return self.data != NOTHING


def lost(reason: BaseException, *, at_commit: bool) -> ReceiverError:
    """The error for a receiver that does not answer; ``at_commit`` if it was told already which rows are promised."""
    why = "it was silent for too long" if isinstance(reason, SILENT) else str(reason) or "it hung up"
    return ReceiverError(
        "RECEIVER_LOST",
        f"The process on the driver that received this batch's rows does not answer: {why}.",
        _ASKED if at_commit else NOTHING,
        "Start the query again: if the ledger does not have the batch, Spark runs it again from its source.",
    )


def without_rows(what: str) -> ReceiverError:
    """The error for a receiver that does not have what the commit messages promise."""
    return ReceiverError("ROWS_NOT_RECEIVED", what, NOTHING, _REMEDY)


def not_in_ledger(verdict: str, batch_id: int) -> ReceiverError:
    """The error for a batch that the receiver calls done, but that the ledger does not have."""
    return ReceiverError(
        "NOT_IN_LEDGER",
        f"The process on the driver that received the rows of batch {batch_id} says that it is done ({verdict}), "
        "but the ledger does not have it.",
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
    return ReceiverError("RECEIVER_FAILED", what, _ASKED, f"{_REMEDY} If this happens again, report it.")


def as_message(error: Exception) -> list[str]:
    """``error`` in a form that goes over the line."""
    said = in_words(error)
    return [type(said).__name__, said.code, said.what, said.data, said.remedy]


def from_message(message: list[str]) -> PgonceError:
    """The error that was sent."""
    name, *words = message
    kinds = {kind.__name__: kind for kind in _kinds(PgonceError)}
    return kinds.get(name, CommitError)(*words)


def _kinds(root: type[PgonceError]) -> Iterator[type[PgonceError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)
