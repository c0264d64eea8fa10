"""
Measure at Kafka's brokers, every half a minute, how far queries are behind.

Runs in ``pgonce serve``, in a thread of its own, if it was told where the brokers are. Invariants: no page waits for a
broker; what was measured is used by this process, and stored for others in ``pgonce.measured_lag`` if the role may.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence

from sqlalchemy import Connection, func
from sqlalchemy.dialects.postgresql import insert

from pgonce.offsets_store.errors import LedgerError, PgonceError, without_its_words
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.ledger.tables import measured_lag
from pgonce.offsets_store.status.measure import measure
from pgonce.offsets_store.status.states import MeasuredLag

_log = logging.getLogger("pgonce")
EVERY_SECONDS = 30.0


class BrokerLag:
    """Asks the brokers from :meth:`start` to :meth:`stop`."""

    def __init__(self, url: str, brokers: Brokers) -> None:
        self._url = url
        self._brokers = brokers
        self._measured: Sequence[MeasuredLag] = ()
        self._stores = True
        self._said = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgonce-lag", daemon=True)

    def measured(self) -> Sequence[MeasuredLag]:
        """What was measured last; the views leave out what is older than ten minutes."""
        return self._measured

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._measured = measure(self._url, self._brokers)
                self._store()
                self._say("")
            except PgonceError as error:
                self._say(str(error))
            except Exception as error:  # noqa: BLE001 (nothing that happens here may end the thread)
                self._say(without_its_words(error).splitlines()[0])
            self._stopping.wait(EVERY_SECONDS)

    def _store(self) -> None:
        if not self._stores or not self._measured:
            return
        try:
            with writing(self._url) as connection:
                store_in_tx(connection, self._measured)
        except LedgerError as error:
            # A role that only reads: its own pages and metrics have the lag nevertheless.
            self._stores = False
            _log.warning("the measured lag is shown here, and not stored for others: %s", error)

    def _say(self, text: str) -> None:
        if text and text != self._said:
            _log.warning("the lag cannot be measured: %s", text)
        self._said = text


def store_in_tx(connection: Connection, measured: Sequence[MeasuredLag]) -> None:
    """Store what was measured, in the place of what was measured before."""
    new = insert(measured_lag).values([dataclasses.asdict(one) for one in measured])
    names = ("lag", "lag_seconds", "retention_used_percent", "measured_at")
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["query_id", "sink_name"],
            set_={name: new.excluded[name] for name in names},
            where=measured_lag.c.measured_at < func.clock_timestamp(),
        )
    )
