"""
Read all that the ledger has of one query and sink.

Runs where a user or a program asks: the shell, a page. Invariant: it only reads, in one snapshot, and each list has
a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from sqlalchemy import text

from ..ledger.session import reading
from ..ledger.tables import writers
from .dead_letters import StoredLetter, as_letters, letters_of
from .ends import lag_of
from .failures import StoredFailure, failures_of
from .read_stored import WRITERS, as_stored, newest_batches, newest_progress
from .stored import PartitionLag, StoredBatch, StoredWriter

_MOST_COUNTED = 10_000


@dataclass(frozen=True)
class QueryDetails:
    """
    What the ledger has of one query and sink, the newest first; ``writer`` is None if it has published nothing.

    ``letter_codes`` counts its dead letters by code, if that was asked for.
    """

    writer: StoredWriter | None = None
    batches: Sequence[StoredBatch] = ()
    partitions: Sequence[PartitionLag] = ()
    failures: Sequence[StoredFailure] = ()
    letters: Sequence[StoredLetter] = ()
    letter_codes: Mapping[str, int] | None = None


_LETTER_CODES = text(f"""
SELECT d.code, count(*) AS letters
FROM (SELECT code FROM pgonce.dead_letters WHERE query_id = :query_id AND sink_name = :sink_name
      ORDER BY batch_id DESC LIMIT {_MOST_COUNTED}) AS d
GROUP BY d.code ORDER BY letters DESC, d.code LIMIT 50
""")


def read_details(
    url: str,
    query_id: str,
    sink_name: str | None,
    newest: int = 10,
    *,
    letters: int = 10,
    with_rows: bool = False,
    code: str | None = None,
) -> QueryDetails:
    """
    What the ledger has of this query and sink; empty if it has nothing.

    :param sink_name: None for a query that failed before its sink was known.
    :param newest: how many batches and failures, at most.
    :param letters: how many dead letters, at most; of one ``code``, if it is given.
    :param with_rows: whether to read the rows of dead letters, and to count them by code.
    :raises ConnectError: if Postgres cannot be reached; LedgerError, if the ledger cannot be read.
    """
    sink = sink_name or ""
    wanted = letters_of([(query_id, sink)], code=code, with_rows=with_rows, newest=letters)
    asked = {"query_id": query_id, "sink_name": sink}
    with reading(url) as connection:
        own = as_stored(connection, WRITERS.where(writers.c.query_id == query_id, writers.c.sink_name == sink))
        heard = newest_progress(connection, [query_id]).get(query_id)
        codes = connection.execute(_LETTER_CODES, asked).all() if with_rows else ()
        return QueryDetails(
            own[0] if own else None,
            newest_batches(connection, own, newest) if own else [],
            lag_of(own[0], heard, datetime.now(timezone.utc)) if own else (),
            failures_of(connection, query_id, sink_name, newest),
            as_letters(connection, wanted),
            {row.code: row.letters for row in codes},
        )
