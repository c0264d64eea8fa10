"""
Read a checkpoint and the ledger, and say how the two stand to each other.

Runs in the command ``pgonce doctor``. Invariant: it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..checkpoint.files import open_location
from ..errors import LedgerError
from ..ledger.session import reading
from ..verdict.rivals import Neighbour
from .diagnosis import Diagnosis, diagnose
from .first_contact import first_contacts
from .next_start import next_start
from .read_stopped_query import known_sinks, read_checkpoint, read_neighbours, with_state
from .refused_recovery import no_checkpoint


def examine(
    checkpoint_location: str, url: str = "", *, sink: str | None = None, query_name: str | None = None
) -> Diagnosis:
    """
    Compare a checkpoint with the ledger, over all sinks of its query.

    :param sink: the sink that the query will write to, if the ledger does not know the query.
    :param query_name: the name of such a query.
    :raises CheckpointError: where the checkpoint cannot be read; or there is none, and the ledger knows of none there.
    :raises LedgerError: where the ledger cannot be read.
    """
    files = open_location(checkpoint_location)
    checkpoint = read_checkpoint(files)
    sinks = known_sinks(url, checkpoint)
    fed = {} if sinks else _fed(url, sink)
    if checkpoint.is_empty and sink is None and not _knows(fed, checkpoint.location):
        raise no_checkpoint(checkpoint)
    contacts = [] if sinks else first_contacts(checkpoint, fed, next_start(checkpoint), sink, query_name)
    return diagnose(with_state(files, checkpoint, sinks), sinks, contacts)


def _fed(url: str, sink: str | None) -> dict[str, tuple[Neighbour, ...]]:
    try:
        with reading(url) as connection:
            return read_neighbours(connection, sink)
    except LedgerError as error:
        # The first batch of the query will create it.
        if error.code == "NO_LEDGER":
            return {}
        raise


def _knows(fed: Mapping[str, Sequence[Neighbour]], location: str) -> bool:
    return any(other.checkpoint_location == location for others in fed.values() for other in others)
