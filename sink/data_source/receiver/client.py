"""
What do tasks and the commit say to the receiver?

Runs in tasks and in the commit worker. Invariant: rows are promised only once the receiver has said that it holds all
of them; as long as nobody knows what became of them, they are called lost, never committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict

from pgonce.offsets_store.verdict.decide import Verdict

from ...identity.origin import Origin
from ..carrier import Promise
from .error_messages import from_message, lost
from .line import BROKEN, CONNECT_SECONDS, SILENT, Address, Line
from .messages import promise_as_message

_log = logging.getLogger("pgonce")


def send_rows(
    receiver: Address, origin: Origin, partition_id: int, attempt_id: int, bodies: Iterable[tuple[bytes, int]]
) -> int | None:
    """
    Send all rows of a task attempt, given as bodies with their row counts, and return how many rows they were.

    If the receiver cannot be reached, or wants no more rows of this batch, return None: nothing was taken from
    ``bodies``.

    :raises ReceiverError: if the receiver is lost on the way.
    """
    line = _line_for_rows(receiver, origin, partition_id, attempt_id)
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


def finish(receiver: Address, origin: Origin, promise: Promise) -> Verdict:
    """
    Have the receiver commit the batch, wait, and return the verdict that it reports; the ledger must confirm it.

    :raises ReceiverError: RECEIVER_LOST, if nobody answers. If that ``leaves_unknown``, only the ledger tells whether
        the batch was committed.
    :raises PgonceError: what the commit in the receiver raised.
    """
    with _broken_is_lost(at_commit=False):
        line = receiver.dial()
    with _broken_is_lost(at_commit=True), closing(line):
        promised = {"origin": asdict(origin), "bodies": len(promise.inline), "promise": promise_as_message(promise)}
        line.say(say="finish", token=str(receiver.token), **promised)
        for body in promise.inline:
            line.send_body(body)
        while True:
            answer = line.hear()
            if "error" in answer:
                raise from_message(answer["error"])
            if "verdict" in answer:
                return Verdict[answer["verdict"]]


def give_up(receiver: Address) -> None:
    """Tell the receiver that the batch has failed, if it is still there."""
    try:
        with closing(receiver.dial(CONNECT_SECONDS)) as line:
            line.say(say="give up", token=str(receiver.token))
            line.hear()
    except BROKEN as error:
        _log.info("a receiver could not be told that its batch has failed: %s", error)


# Receivers that did not answer in time: behind a firewall, or frozen. No task of this worker waits for them again.
_unreachable: set[tuple[str, int]] = set()


def _line_for_rows(receiver: Address, origin: Origin, partition_id: int, attempt_id: int) -> Line | None:
    where = (receiver.host, receiver.port)
    if where in _unreachable:
        return None
    try:
        line = receiver.dial()
        try:
            who = {"origin": asdict(origin), "partition_id": partition_id, "attempt_id": attempt_id}
            line.say(say="rows", token=str(receiver.token), **who)
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


@contextmanager
def _broken_is_lost(*, at_commit: bool) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        raise lost(error, at_commit=at_commit) from error
