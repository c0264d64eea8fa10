"""
The receiver as tasks and the commit reach it.

Made in the planner's worker, used in tasks and in the commit worker. Invariant: rows are promised only once the
receiver has said that it holds all of them, and only what the ledger holds counts as committed, not what the receiver
says. As long as the ledger cannot be asked, the outcome is called unknown.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from uuid import UUID

import psycopg
import sqlalchemy.exc

from pgonce.offsets_store.commit.retrying import unknown_outcome, what_became_of
from pgonce.offsets_store.commit.work import NameSink
from pgonce.offsets_store.errors import PgonceError, RefusedBatch
from pgonce.offsets_store.ledger.session import RecordedAttempt, recorded_attempt
from pgonce.offsets_store.verdict.decide import PUBLISH, Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ...identity.from_checkpoint import Origin
from ...options.sink_options import SinkOptions
from .line import BROKEN, CONNECT_SECONDS, SILENCE_SECONDS, SILENT, Line, context_for
from .messages import (
    PerhapsCommittedError,
    Promise,
    ReceiverError,
    error_from_message,
    lost,
    not_in_ledger,
    promise_as_message,
)

_log = logging.getLogger("pgonce")

# Receivers that did not answer in time: behind a firewall, or frozen. No task of this worker waits for them again.
_unreachable: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class Receiver:
    """
    The receiver of one planned batch: where it listens, and its certificate.

    ``token`` is the token of the batch's commit; the receiver knows the batch by it. It is the same for all tries of
    this plan. All this travels with the plan to the tasks, and with their commit messages to the commit. A receiver
    only makes a batch faster: without one, the rows go through the staging table.
    """

    host: str
    port: int
    certificate: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    token: UUID

    def send_rows(
        self, origin: Origin, partition_id: int, attempt_id: int, bodies: Iterable[tuple[bytes, int]]
    ) -> int | None:
        """
        In a task: send all rows of the attempt, given as bodies with their row counts, and return how many they were.

        If the receiver cannot be reached, or wants no more rows of this batch, return None: nothing was taken from
        ``bodies``.

        :raises ReceiverError: if the receiver is lost on the way.
        """
        line = self._line_for_rows(origin, partition_id, attempt_id)
        if line is None:
            return None
        rows = 0
        try:
            for body, count in bodies:
                # Not around the whole loop: an error while a body is made does not come from the receiver.
                with _broken_is_lost(at_commit=False):
                    # An empty body would mean that no more come.
                    if body:
                        line.send_body(body)
                rows += count
            with _broken_is_lost(at_commit=False):
                line.send_body(b"")
                line.say(rows=rows)
                line.hear()
        finally:
            line.close()
        return rows

    def commit(
        self,
        options: SinkOptions,
        origin: Origin,
        promise: Promise,
        identified: Callable[[], PlannedBatch],
        name_sink: NameSink,
    ) -> tuple[Verdict, bool]:
        """
        In the commit worker: have the batch committed, and look in the ledger whether it was, even if it is lost.

        :param identified: reads the checkpoint, and is called only if the batch must be known in full.
        :param name_sink: says inside a transaction into which sink the batch goes.
        :return: what became of the batch, and whether staging tables of this or earlier batches may still be there.
        :raises ReceiverError: if the batch is not done.
        :raises RefusedBatch: if the ledger says that it can never be.
        :raises CommitError: COMMIT_UNKNOWN, if the ledger cannot be asked.
        :raises PgonceError: what the commit in the receiver raised.
        """
        claimed: Verdict | None = None
        failure: ReceiverError
        try:
            claimed = self.finish(origin, promise)
            failure, said = not_in_ledger(claimed.name, origin.batch_id), f"says that it is done ({claimed.name})"
        except ReceiverError as error:
            failure, said = error, f"may have committed it: {error.what}"
        recorded = self._recorded(options, origin)
        verdict = _by_token(recorded, claimed) if recorded else None
        if verdict is None:
            try:
                # The receiver's transaction may still be open, or on its way to COMMIT.
                verdict = what_became_of(options.commit, identified(), name_sink)
            except RefusedBatch:
                raise
            except PgonceError as error:
                if not isinstance(failure, PerhapsCommittedError):
                    raise
                raise unknown_outcome(
                    f"The receiver of batch {origin.batch_id} {said.rstrip('.')}. After that, the ledger could not "
                    f"be asked: {error.what}"
                ) from None
            if verdict in PUBLISH:
                raise failure
        return verdict, recorded is None or recorded.may_sweep

    def finish(self, origin: Origin, promise: Promise) -> Verdict:
        """
        Have the receiver commit the batch, wait, and return the verdict that it reports; the ledger must confirm it.

        :raises ReceiverError: if no receiver answers, or if it does not have the rows.
        :raises PgonceError: what the commit in the receiver raised.
        """
        with _broken_is_lost(at_commit=False):
            line = self.dial()
        with _broken_is_lost(at_commit=True), closing(line):
            promised = {"origin": asdict(origin), "bodies": len(promise.inline), "promise": promise_as_message(promise)}
            line.say(say="finish", token=str(self.token), **promised)
            for body in promise.inline:
                line.send_body(body)
            while True:
                answer = line.hear()
                if "error" in answer:
                    raise error_from_message(answer["error"])
                if "verdict" in answer:
                    return Verdict[answer["verdict"]]

    def give_up(self) -> None:
        """
        In the commit worker: the batch has failed, or is committed in another way, so its rows are no longer needed.
        """
        try:
            with closing(self.dial(CONNECT_SECONDS)) as line:
                line.say(say="give up", token=str(self.token))
                line.hear()
        except BROKEN as error:
            _log.info("a receiver could not be told that its batch has failed: %s", error)

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

    def _recorded(self, options: SinkOptions, origin: Origin) -> RecordedAttempt | None:
        """What the ledger has of this attempt; None if it could not be asked at once, and is asked with patience."""
        url, sink = options.commit.url, options.sink_label
        try:
            return recorded_attempt(url, origin.query_id, sink, origin.batch_id, self.token)
        except (PgonceError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
            # Only the kind of error: the text of one that is not ours may hold a statement.
            _log.info("the ledger is asked again under the writer's lock: %s", type(error).__name__)
            return None


def _by_token(recorded: RecordedAttempt, claimed: Verdict | None) -> Verdict | None:
    """The verdict that the ledger holds of the attempt, as the receiver called it if it did; None if there is none."""
    if recorded.published:
        return claimed if claimed not in (None, Verdict.REPLAY) else Verdict.LANDED
    return Verdict.REPLAY if recorded.skipped else None


@contextmanager
def _broken_is_lost(*, at_commit: bool) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        raise lost(error, at_commit=at_commit) from error
