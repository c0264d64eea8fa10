"""
Know the lag of each partition: measured at Kafka's brokers, or as progress events told it.

Runs in ``pgonce serve``, in a thread of its own, every half a minute. Invariants: no page and no scrape waits for a
broker; what was measured is used by this process, and stored for others in ``pgonce.measured_lag`` if the role may.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, func, or_
from sqlalchemy.dialects.postgresql import insert

from pgonce.offsets_store.errors import LedgerError, PgonceError, without_its_words
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.ledger.tables import measured_lag
from pgonce.offsets_store.status.measure import measure_partitions
from pgonce.offsets_store.status.states import MeasuredLag
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.status.stored import PartitionLag

from .look import Key

_log = logging.getLogger("pgonce")
_EVERY_SECONDS = 30.0
_NOT_MEASURED = "the lag cannot be measured"
_NOT_STORED = "the measured lag is shown here, and not stored for others"
# Without brokers, it is read for scrapes alone, and no longer than they come.
_WANTED_SECONDS = 300.0


class PartitionLags:
    """
    Reads the lag from :meth:`start` to :meth:`stop`.

    :param brokers: whom to ask; None to read what progress events told.
    """

    def __init__(self, url: str, brokers: Brokers | None) -> None:
        self._url = url
        self._brokers = brokers
        self._measured: Sequence[MeasuredLag] = ()
        self._rows: Mapping[Key, Sequence[PartitionLag]] = {}
        self._wanted_at: float | None = None
        self._stores = True
        self._said: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgonce-lag", daemon=True)

    def measured(self) -> Sequence[MeasuredLag]:
        """What the brokers told last; the views leave out what is older than ten minutes."""
        return self._measured

    def partitions(self) -> Mapping[Key, Sequence[PartitionLag]]:
        """The partitions of each query and sink."""
        self._wanted_at = time.monotonic()
        return self._rows

    def rows_of(self, query_id: str, sink_name: str | None) -> Sequence[PartitionLag]:
        """What the brokers told of each partition of a query and sink; empty if they were not asked."""
        return self._rows.get((query_id, sink_name or ""), ()) if self._brokers else ()

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.refresh()
            except Exception as error:  # noqa: BLE001 (nothing that happens here may end the thread)
                self._rows = {}
                is_ours = isinstance(error, PgonceError)
                self._say(_NOT_MEASURED, str(error) if is_ours else without_its_words(error).splitlines()[0])
            self._stopping.wait(_EVERY_SECONDS)

    def refresh(self) -> None:
        """
        Read once.

        :raises PgonceError: if the brokers or the ledger cannot be asked.
        """
        if self._brokers is not None:
            found = measure_partitions(self._url, self._brokers)
            self._say(_NOT_MEASURED, "")
            self._measured = [one.total for one in found]
            self._rows = {(one.total.query_id, one.total.sink_name): one.partitions for one in found}
            self._store()
        elif self._wanted_at is not None and time.monotonic() - self._wanted_at < _WANTED_SECONDS:
            self._rows = {
                (writer.query_id, writer.sink_name): rows for writer, rows in OffsetsStore(self._url).status()
            }

    def _store(self) -> None:
        if not self._stores or not self._measured:
            return
        try:
            with writing(self._url) as connection:
                store_in_tx(connection, self._measured)
            self._say(_NOT_STORED, "")
        except LedgerError as error:
            # A role that only reads has the lag on its own pages and in its metrics. Any other cause may pass.
            self._stores = error.code != "LEDGER_NOT_PERMITTED"
            self._say(_NOT_STORED, str(error))

    def _say(self, what: str, why: str) -> None:
        """Log it once for each cause; no cause says that it is over."""
        if why and why != self._said.get(what):
            _log.warning("%s: %s", what, why)
        self._said[what] = why


def store_in_tx(connection: Connection, measured: Sequence[MeasuredLag]) -> None:
    """
    Store what was measured, in the place of what was measured before.

    A host whose clock is ahead stores Postgres's time, so that it does not keep out what others measure after it.
    """
    now = func.clock_timestamp()
    rows = [{**dataclasses.asdict(one), "measured_at": func.least(one.measured_at, now)} for one in measured]
    new = insert(measured_lag).values(rows)
    names = ("lag", "lag_seconds", "retention_used_percent", "measured_at")
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["query_id", "sink_name"],
            set_={name: new.excluded[name] for name in names},
            where=or_(measured_lag.c.measured_at < new.excluded.measured_at, measured_lag.c.measured_at > now),
        )
    )
