"""
The receiver as tasks and the commit reach it.

Made in the planner's worker, used in tasks and in the commit worker. Invariant: if the receiver is gone, the commit
worker commits the batch from what was kept, under the same token. Only what the ledger holds counts as committed, not
what the receiver says. As long as the ledger cannot be asked, the outcome is called unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from pgonce.offsets_store.errors import PgonceError, RefusedBatch
from pgonce.offsets_store.verdict.decide import PUBLISH, Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ...identity.from_checkpoint import Origin
from ...options.sink_options import SinkOptions
from ..offer import WorkWith
from . import folders
from .calls import Doors
from .folders import Note, is_private
from .kept_rows import PromisedRows
from .line import BROKEN, SILENCE_SECONDS, Line
from .messages import PerhapsCommittedError, ReceiverError, error_from_message, lost, not_in_ledger
from .sending import Call

if TYPE_CHECKING:
    from ..promise import Promise

_log = logging.getLogger("pgonce")


@dataclass(frozen=True)
class Receiver:
    """
    The receiver of one planned batch: how it is called, and where it keeps rows.

    ``folder`` is on the driver's host, where the commit worker finds it, once the receiver has started. ``token`` is
    the token of the batch's commit; the receiver knows the batch by it. It is the same for all tries of this plan.
    ``note`` is where the commit writes for later plans that executors on other hosts need one. All this travels with
    the plan to the tasks, and with their commit messages to the commit. A receiver only makes a batch faster: without
    one, the rows go through the staging table.
    """

    doors: Doors
    token: UUID
    folder: str
    note: Note | None = None

    def call(self, setting: Callable[[str], str | None] = lambda _: None) -> Call:
        """
        In a task: call it, while the task makes more rows.

        :param setting: a setting of the query, as tasks know it.
        """
        host = setting("spark.driver.host")
        return Call(self.doors.also_at(host), self.token, setting("spark.driver.bindAddress") or host)

    def commit(
        self,
        options: SinkOptions,
        origin: Origin,
        promise: Promise,
        identified: Callable[[], PlannedBatch],
        work_with: WorkWith,
    ) -> Verdict:
        """
        In the commit worker: have the batch committed, and look in the ledger whether it was.

        If the receiver is lost, commit it here, from the rows that it has kept.

        :param identified: reads the checkpoint, and is called only if the batch must be known in full.
        :raises ReceiverError: if the batch is not done, and its rows are not there.
        :raises RefusedBatch: if the ledger says that it can never be.
        :raises CommitError: COMMIT_UNKNOWN, if the ledger cannot be asked.
        :raises PgonceError: what the commit raised.
        """
        # Here, because tasks get a receiver as well, and ask Postgres nothing.
        from pgonce.offsets_store.commit.retrying import commit_batch, what_became_of

        kept: PromisedRows | None = None
        failure: ReceiverError
        try:
            claimed = self.finish(origin, promise)
            if self._is_recorded(options, origin):
                return claimed
            failure = not_in_ledger(claimed.name, origin.batch_id)
        except ReceiverError as error:
            failure, kept = error, self._kept(promise)
        if kept is None:
            with _asking(failure):
                verdict = what_became_of(options.commit, identified(), work_with(tuple).name_sink)
            if verdict in PUBLISH:
                raise failure
            return verdict
        with _asking(failure):
            planned = identified()
        _log.warning("batch %s is committed without its receiver: %s", origin.batch_id, failure.what)
        may_be_there = isinstance(failure, PerhapsCommittedError)
        verdict = commit_batch(options.commit, planned, work_with(kept.rows), outcome_unknown=may_be_there)
        folders.remove_batch(Path(self.folder), self.token)
        return verdict

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
                message = {"origin": asdict(origin), "inline": len(promise.inline)}
                line.say(say="finish", token=str(self.token), promise=promise.as_message(), **message)
                for rows in promise.inline:
                    line.send_rows(rows)
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
        if not Path(self.folder).exists():
            # It was never started, which a call would do; or it has ended.
            return
        try:
            with closing(self.dial()) as line:
                line.say(say="give up", token=str(self.token))
                line.hear()
        except BROKEN as error:
            _log.info("a receiver could not be told that its batch is over: %s", error)
            self._end_process()
        folders.remove_batch(Path(self.folder), self.token)

    def has_kept_rows(self) -> bool:
        """In the commit worker: whether any attempt's rows are kept of this batch. Without them nothing was begun."""
        folder = Path(self.folder)
        return is_private(folder) and folders.kept_file(folder, self.token).exists()

    def dial(self) -> Line:
        """
        Open a line to it, on which no wait takes longer than :data:`SILENCE_SECONDS`.

        :raises OSError: or another of :data:`BROKEN`, if that fails.
        """
        return self.doors.dial(SILENCE_SECONDS)

    def note_unreached(self, driver: str) -> None:
        """
        In the commit worker: some tasks have staged their rows, because no process was at its addresses.

        So the next plan offers one to executors on other hosts too, unless this one was offered to them.

        :param driver: the address or the name at which Spark's driver listens.
        """
        if self.doors.is_for_other_hosts:
            _say_once(driver)
        elif self.note is not None:
            self.note.write(driver)

    def _end_process(self) -> None:
        """
        In the commit worker: end the receiver, which does not answer, so that Postgres ends its transactions.

        The rows of other queries that it has kept are then found in their files.
        """
        process = folders.process_of(Path(self.folder))
        if process is not None and process.kill():
            _log.warning("the receiver (process %s) did not answer, and was ended", process.pid)

    def _kept(self, promise: Promise) -> PromisedRows | None:
        try:
            if not is_private(Path(self.folder)):
                raise FileNotFoundError("its folder is gone")
            return PromisedRows(folders.kept_file(Path(self.folder), self.token), promise.received)
        except (OSError, EOFError) as error:
            _log.warning("the rows that a lost receiver had kept cannot be read: %s", error)
            return None

    def _is_recorded(self, options: SinkOptions, origin: Origin) -> bool:
        """Whether the ledger has this attempt; False too if it could not be asked at once."""
        import psycopg
        import sqlalchemy.exc

        from pgonce.offsets_store.ledger.session import is_recorded

        try:
            return is_recorded(options.commit.url, origin.query_id, origin.batch_id, self.token)
        except (PgonceError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
            # Only the kind of error: the text of one that is not ours may hold a statement.
            _log.info("the ledger is asked again under the writer's lock: %s", type(error).__name__)
            return False


@cache
def _say_once(driver: str) -> None:
    _log.warning(
        "executors have not reached the receiver on this driver (%s), so they have staged large partitions. If the "
        "driver has an address that they reach, set receiver to it; receiver=off ends this message.",
        driver,
    )


@contextmanager
def _asking(failure: ReceiverError) -> Iterator[None]:
    """Ask what has become of a batch; an error leaves it unknown if the receiver may have committed it."""
    try:
        yield
    except RefusedBatch:
        raise
    except PgonceError as error:
        if not isinstance(failure, PerhapsCommittedError):
            raise
        from pgonce.offsets_store.commit.retrying import unknown_outcome

        raise unknown_outcome(f"{failure.what} After that, the ledger could not be asked: {error.what}") from None
