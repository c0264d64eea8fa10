"""
What does a task or the commit worker need in order to reach the receiver?

Made in the planner's worker, used in tasks and in the commit worker. Invariant: it can be pickled, holds no
connection, and has all that is needed to open one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pgonce.offsets_store.commit.work import NameSink
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ...identity.origin import Origin
from ...options.sink_options import SinkOptions
from ..carrier import Carried, Promise
from . import client
from .line import Address
from .outcome import finished


class ReceiverHandle(Address):
    """The receiver as a :class:`~pgonce.sink.data_source.carrier.Carrier` of one planned batch."""

    def send_rows(
        self, origin: Origin, partition_id: int, attempt_id: int, bodies: Iterable[tuple[bytes, int]]
    ) -> int | None:
        """:raises ReceiverError: if the receiver is lost on the way."""
        return client.send_rows(self, origin, partition_id, attempt_id, bodies)

    def commit(
        self,
        options: SinkOptions,
        origin: Origin,
        promise: Promise,
        identified: Callable[[], PlannedBatch],
        name_sink: NameSink,
    ) -> Carried:
        """:raises PgonceError: as :func:`~pgonce.sink.data_source.receiver.outcome.finished`."""
        return finished(options, self, origin, promise, identified, name_sink)

    def give_up(self) -> None:
        """Tell the receiver that nobody needs the batch's rows any more, if it is still there."""
        client.give_up(self)
