"""
The receiver as tasks and the commit reach it.

Made in the planner's worker, used in tasks and in the commit worker. Invariant: a task holds its rows until the
receiver has said that they are kept, and promises only those as received. If the receiver is gone, the commit worker
commits the batch from what was kept, under the same token. Only what the ledger holds counts as committed, not what the
receiver says. As long as the ledger cannot be asked, the outcome is called unknown.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import pyarrow as pa

from pgonce.offsets_store.errors import PgonceError, RefusedBatch
from pgonce.offsets_store.verdict.decide import PUBLISH, Verdict
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ...identity.from_checkpoint import Origin
from ...options.sink_options import SinkOptions
from . import folders
from .host_process import HostProcess
from .kept_rows import PromisedRows
from .line import BROKEN, CONNECT_SECONDS, SILENCE_SECONDS, SILENT, Line, context_for
from .messages import (
    PerhapsCommittedError,
    Promise,
    ReceiverError,
    cost_of_keeping,
    error_from_message,
    lost,
    not_in_ledger,
    promise_as_message,
)

if TYPE_CHECKING:
    from pgonce.offsets_store.commit.work import Work
    from pgonce.offsets_store.ledger.session import RecordedAttempt

_log = logging.getLogger("pgonce")

# Receivers that did not answer in time: behind a firewall, or frozen. No task of this worker waits for them again.
_unreachable: set[tuple[str, int]] = set()
# So much of its rows a task holds while the receiver has not said that they are kept.
UNACKNOWLEDGED_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Taken:
    """
    What a receiver has taken of a task's rows: so many of the first ``rows`` are kept.

    ``left`` are those that it was sent and has not acknowledged. It may have them, but they must not be promised.
    """

    rows: int = 0
    left: tuple[pa.RecordBatch, ...] = ()


WorkWith: TypeAlias = "Callable[[Callable[[], Iterator[bytes]]], Work[Batch]]"
"""Makes the work of the commit, given what reads the received rows."""


@dataclass(frozen=True)
class Receiver:
    """
    The receiver of one planned batch: where it listens, its certificate, and where it keeps rows.

    ``process`` and ``folder`` are on the driver's host, where the commit worker finds them. ``token`` is the token of
    the batch's commit; the receiver knows the batch by it. It is the same for all tries of this plan. All this travels
    with the plan to the tasks, and with their commit messages to the commit. A receiver only makes a batch faster:
    without one, the rows go through the staging table.
    """

    host: str
    port: int
    certificate: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    token: UUID
    process: HostProcess
    folder: str

    def send_rows(
        self, origin: Origin, partition_id: int, attempt_id: int, encoded: Iterator[tuple[bytes, pa.RecordBatch]]
    ) -> Taken:
        """
        In a task: send the attempt's rows, given as bodies, each with the rows that it has.

        If the receiver cannot be reached, breaks off or keeps no more, the other rows are for the caller: those that
        are left of what was sent, and what is left in ``encoded``.
        """
        line = self._line_for_rows(origin, partition_id, attempt_id)
        if line is None:
            return Taken()
        window = _Window(line)
        with closing(line):
            for body, batch in encoded:
                # An empty body would mean that no more come.
                if body and not self._is_sent(window, body, batch):
                    break
            else:
                self._is_sent(window)
        return Taken(window.kept, tuple(batch for batch, _ in window.held))

    def commit(
        self,
        options: SinkOptions,
        origin: Origin,
        promise: Promise,
        identified: Callable[[], PlannedBatch],
        work_with: WorkWith,
    ) -> tuple[Verdict, bool]:
        """
        In the commit worker: have the batch committed, and look in the ledger whether it was.

        If the receiver is lost, commit it here, from the rows that it has kept.

        :param identified: reads the checkpoint, and is called only if the batch must be known in full.
        :return: what became of the batch, and whether staging tables of this or earlier batches may still be there.
        :raises ReceiverError: if the batch is not done, and its rows are not there.
        :raises RefusedBatch: if the ledger says that it can never be.
        :raises CommitError: COMMIT_UNKNOWN, if the ledger cannot be asked.
        :raises PgonceError: what the commit raised.
        """
        # Here, because tasks get a receiver as well, and ask Postgres nothing.
        from pgonce.offsets_store.commit.retrying import commit_batch, what_became_of

        claimed: Verdict | None = None
        kept: PromisedRows | None = None
        failure: ReceiverError
        try:
            claimed = self.finish(origin, promise)
            failure, said = not_in_ledger(claimed.name, origin.batch_id), f"says that it is done ({claimed.name})"
        except ReceiverError as error:
            failure, said = error, f"may have committed it: {error.what}"
            kept = self._kept(promise)
        recorded = self._recorded(options, origin)
        verdict = _by_token(recorded, claimed) if recorded else None
        if verdict is None:
            with _asking(failure, origin.batch_id, said):
                planned = identified()
            if kept is not None:
                _log.warning("batch %s is committed without its receiver: %s", origin.batch_id, failure.what)
                may_be_there = isinstance(failure, PerhapsCommittedError)
                verdict = commit_batch(options.commit, planned, work_with(kept.bodies), outcome_unknown=may_be_there)
            else:
                with _asking(failure, origin.batch_id, said):
                    verdict = what_became_of(options.commit, planned, work_with(lambda: iter(())).name_sink)
                if verdict in PUBLISH:
                    raise failure
        if kept is not None:
            self._remove_kept()
        return verdict, recorded is None or recorded.may_sweep

    def finish(self, origin: Origin, promise: Promise) -> Verdict:
        """
        Have the receiver commit the batch, wait, and return the verdict that it reports; the ledger must confirm it.

        If it does not answer, it is ended.

        :raises ReceiverError: if no receiver answers, or if it does not have the rows.
        :raises PgonceError: what the commit in the receiver raised.
        """
        is_told = False
        try:
            with closing(self.dial()) as line:
                is_told = True
                message = {"origin": asdict(origin), "bodies": len(promise.inline)}
                line.say(say="finish", token=str(self.token), promise=promise_as_message(promise), **message)
                for body in promise.inline:
                    line.send_body(body)
                while True:
                    answer = line.hear()
                    if "error" in answer:
                        raise error_from_message(answer["error"])
                    if "verdict" in answer:
                        return Verdict[answer["verdict"]]
        except BROKEN as error:
            # Whatever it still does, it holds the writer's row meanwhile.
            self._end_process()
            raise lost(error, at_commit=is_told) from error

    def give_up(self) -> None:
        """
        In the commit worker: the batch has failed, or is committed in another way, so its rows are no longer needed.

        If the receiver does not answer, it is ended, because it may hold a transaction of the batch.
        """
        try:
            with closing(self.dial()) as line:
                line.say(say="give up", token=str(self.token))
                line.hear()
        except BROKEN as error:
            _log.info("a receiver could not be told that its batch is over: %s", error)
            self._end_process()
        self._remove_kept()

    def dial(self, patience: int | None = None) -> Line:
        """
        Open a line to it, on which no wait takes longer than ``patience`` seconds (else :data:`SILENCE_SECONDS`).

        :raises OSError: or another of :data:`BROKEN`, if that fails.
        """
        context = context_for(self.certificate)
        connected = socket.create_connection((self.host, self.port), timeout=CONNECT_SECONDS)
        line = Line(connected, context, patience or SILENCE_SECONDS, dialled=True)
        try:
            line.show(self.secret)
        except BaseException:
            line.close()
            raise
        return line

    def _end_process(self) -> None:
        """
        In the commit worker: end the receiver, which does not answer, so that Postgres ends its transactions.

        The rows of other queries that it has kept are then found in their files.
        """
        if self.process.kill():
            _log.warning("the receiver (process %s) did not answer, and was ended", self.process.pid)

    def _remove_kept(self) -> None:
        folders.remove_batch(Path(self.folder), self.token)
        if not self.process.lives():
            folders.remove_if_empty(Path(self.folder))

    def _kept(self, promise: Promise) -> PromisedRows | None:
        try:
            return PromisedRows(folders.kept_file(Path(self.folder), self.token), promise.received)
        except (OSError, EOFError) as error:
            _log.warning("the rows that a lost receiver had kept cannot be read: %s", error)
            return None

    def _line_for_rows(self, origin: Origin, partition_id: int, attempt_id: int) -> Line | None:
        where = (self.host, self.port)
        if where in _unreachable:
            return None
        try:
            line = self.dial()
            try:
                who = {"origin": asdict(origin), "partition_id": partition_id, "attempt_id": attempt_id}
                line.say(say="rows", token=str(self.token), **who)
                if line.hear()["taken"]:
                    return line
            except BaseException:
                line.close()
                raise
            line.close()
        except BROKEN as error:
            if isinstance(error, SILENT):
                _unreachable.add(where)
            _log.warning("partition %s is staged: no receiver answers at %s:%s: %s", partition_id, *where, error)
        return None

    def _is_sent(self, window: _Window, body: bytes = b"", batch: pa.RecordBatch | None = None) -> bool:
        """Not around the whole loop: an error while a body is made does not come from the receiver."""
        try:
            if batch is None:
                window.end()
            else:
                window.send(body, batch)
        except BROKEN as error:
            if isinstance(error, SILENT):
                _unreachable.add((self.host, self.port))
            _log.warning("the rest of a partition is staged, because its receiver breaks off: %s", error)
            return False
        return not window.is_closed

    def _recorded(self, options: SinkOptions, origin: Origin) -> RecordedAttempt | None:
        """What the ledger has of this attempt; None if it could not be asked at once, and is asked with patience."""
        import psycopg
        import sqlalchemy.exc

        from pgonce.offsets_store.ledger.session import recorded_attempt

        url, sink = options.commit.url, options.sink_label
        try:
            return recorded_attempt(url, origin.query_id, sink, origin.batch_id, self.token)
        except (PgonceError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
            # Only the kind of error: the text of one that is not ours may hold a statement.
            _log.info("the ledger is asked again under the writer's lock: %s", type(error).__name__)
            return None


@contextmanager
def _asking(failure: ReceiverError, batch_id: int, said: str) -> Iterator[None]:
    """Ask what has become of a batch; an error leaves it unknown if the receiver may have committed it."""
    try:
        yield
    except RefusedBatch:
        raise
    except PgonceError as error:
        if not isinstance(failure, PerhapsCommittedError):
            raise
        from pgonce.offsets_store.commit.retrying import unknown_outcome

        raise unknown_outcome(
            f"The receiver of batch {batch_id} {said.rstrip('.')}. After that, the ledger could not be asked: "
            f"{error.what}"
        ) from None


def _by_token(recorded: RecordedAttempt, claimed: Verdict | None) -> Verdict | None:
    """The verdict that the ledger holds of the attempt, as the receiver called it if it did; None if there is none."""
    if recorded.published:
        return claimed if claimed not in (None, Verdict.REPLAY) else Verdict.LANDED
    return Verdict.REPLAY if recorded.skipped else None


class _Window:
    """
    A task's end of the line: ``held`` are the rows that were sent and are not acknowledged, each with what they cost.

    ``kept`` counts those that are; ``is_closed`` if the receiver keeps no more.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._cost = 0
        self._sent = 0
        self.held: deque[tuple[pa.RecordBatch, int]] = deque()
        self.kept = 0
        self.is_closed = False

    def send(self, body: bytes, batch: pa.RecordBatch) -> None:
        """Send these rows, unless no more are kept, and wait if too many are not acknowledged."""
        cost = cost_of_keeping(body)
        # Held before anything can fail, because they are not given again.
        self.held.append((batch, cost))
        self._cost += cost
        while self._line.has_word() and not self.is_closed:
            self._hear()
        if self.is_closed:
            return
        self._sent += batch.num_rows
        self._line.send_rows(body, batch.num_rows)
        while self._cost > UNACKNOWLEDGED_BYTES and not self.is_closed:
            self._hear()

    def end(self) -> None:
        """Say that these were all, and wait until they are acknowledged."""
        self._line.send_rows(b"", self._sent)
        while self.held and not self.is_closed:
            self._hear()

    def _hear(self) -> None:
        said = self._line.hear()
        while self.held and self.kept + self.held[0][0].num_rows <= said["kept"]:
            batch, cost = self.held.popleft()
            self.kept += batch.num_rows
            self._cost -= cost
        self.is_closed = not said["more"]
