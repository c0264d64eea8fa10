"""
What people do to a writer by hand: a batch is accepted, a sink is retired, and both are noted.

Covers: pgonce.cli.recover, offsets_store.ledger.lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.blocked import wait_for_blocked
from support.ledger_history import OTHER, QUERY
from support.pages import DOCS, sql_blocks
from support.recoveries import history, noted, recover_at_once, verdict
from support.stopped_query import entries, write_checkpoint

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.errors import RecoveryError
from pgonce.offsets_store.ledger.failures import Failed, keep_failure
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.recovery.by_hand import accept_batch, retire_sink
from pgonce.recovery.doctor import Finding, examine


def at_once(do: Callable[[], object]) -> RecoveryError:
    """Two people do the same at the same time: one of them does it, and what the other is told."""

    def told(_: int) -> RecoveryError | None:
        try:
            do()
        except RecoveryError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = [error for error in pool.map(told, range(2)) if error]
    [error] = errors
    return error


def withdrawal(sink="public.orders", batch=9):
    """The page's statement, for a batch of the query ``orders``."""
    (statement,) = (one for one in sql_blocks((DOCS / "recovering.md").read_text()) if "pgonce.interventions" in one)
    for given in ("by mistake", QUERY, sink):
        statement = statement.replace("'...'", f"'{given}'", 1)
    return statement.replace("batch_id = 9", f"batch_id = {batch}")


class TestAccept:
    @pytest.fixture
    def stuck(self, ahead):
        """A stateful query against a restored database: batch 9 is a gap, and nothing repairs it."""
        (ahead / "state").mkdir()
        return ahead

    def accept(self, pgonce, stuck, *more, batch=9, reason="restored on purpose"):
        """Give the command."""
        return pgonce("accept", "orders", "--batch", batch, "--reason", reason, "--checkpoint", stuck, *more)

    def test_shown_first_then_done(self, pgonce, stuck, observer, url):
        """Without --yes it only tells; with it the ledger has the reason, and the doctor is content."""
        shown = self.accept(pgonce, stuck)
        assert (shown.exit_code, noted(observer)) == (ExitCode.OK, [])
        for said in ("GAP", "The rows of batch", "--yes"):
            assert said in shown.stdout
        assert self.accept(pgonce, stuck, "--yes").exit_code == ExitCode.OK
        assert noted(observer) == [("accept", 9, "restored on purpose", None)]
        assert observer.execute("SELECT made_by = session_user FROM pgonce.interventions").fetchone() == (True,)
        found = examine(str(stuck), url)
        assert (found.finding, found.sinks[0].verdict) == (Finding.AGREE, Verdict.ACCEPTED)
        assert "batch 9 " in found.advice

    def test_it_may_be_withdrawn(self, pgonce, stuck, admin, url):
        """By the page's statement, once, until the batch has come; then recover plans without it again."""
        assert admin.execute(withdrawal()).rowcount == 0
        self.accept(pgonce, stuck, "--yes")
        assert admin.execute(withdrawal(sink="public.other")).rowcount == 0
        assert admin.execute(withdrawal(batch=8)).rowcount == 0
        assert examine(str(stuck), url).sinks[0].verdict is Verdict.ACCEPTED
        assert admin.execute(withdrawal()).rowcount == 1
        assert examine(str(stuck), url).sinks[0].verdict is Verdict.GAP
        withdrawn = "details ->> 'why', details ->> 'withdrawn_by' = session_user"
        assert admin.execute(f"SELECT {withdrawn} FROM pgonce.interventions").fetchone() == ("by mistake", True)
        assert admin.execute(withdrawal()).rowcount == 0
        assert self.accept(pgonce, stuck, "--yes").exit_code == ExitCode.OK

    def test_it_is_not_withdrawn_once_its_batch_has_come(self, pgonce, stuck, admin, observer, url):
        """The statement waits for a commit that has locked the writer, and then finds the acceptance used."""
        self.accept(pgonce, stuck, "--yes")
        with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as commit:
            commit.execute("SELECT FROM pgonce.writers FOR UPDATE")
            withdrawn = pool.submit(lambda: admin.execute(withdrawal()).rowcount)
            wait_for_blocked(observer, commit)
            commit.execute("UPDATE pgonce.interventions SET used_at = clock_timestamp()")
            commit.commit()
            assert withdrawn.result() == 0

    def test_of_two_people_one_accepts_it(self, stuck, url, observer):
        """One acceptance is noted, and the other person is told that there is one."""
        error = at_once(lambda: accept_batch("orders", 9, url, reason="restored", checkpoint_location=str(stuck)))
        assert error.code == "NOTHING_TO_DO"
        assert "accepted already" in error.what
        assert noted(observer) == [("accept", 9, "restored", None)]

    def test_a_batch_is_accepted_once_with_a_reason_and_only_where_needed(self, pgonce, stuck, observer, url):
        """Not twice, not without a reason, not another batch, not another query's checkpoint."""
        for code, given in [
            ("OPTION_MISSING", {"reason": "  "}),
            ("NOTHING_TO_DO", {"batch": 8}),
            ("NOTHING_TO_DO", {"batch": 10}),
        ]:
            refused = self.accept(pgonce, stuck, "--yes", **given)
            assert refused.exit_code != ExitCode.OK
            assert f"[{code}]" in refused.stderr
        assert noted(observer) == []
        self.accept(pgonce, stuck, "--yes")
        assert "[NOTHING_TO_DO]" in self.accept(pgonce, stuck, "--yes").stderr
        (stuck / "metadata").write_text(f'{{"id":"{OTHER}"}}')
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM pgonce.interventions")
        assert "[CHECKPOINT_NOT_FOUND]" in self.accept(pgonce, stuck, "--yes").stderr

    def test_a_batch_that_would_be_no_error(self, pgonce, url, tmp_path):
        """What goes through anyhow needs nobody's word, and an unused one would let through what comes later."""
        history(url, 5)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))
        assert "[NOTHING_TO_DO]" in self.accept(pgonce, checkpoint, "--yes", batch=6).stderr

    def test_a_checkpoint_that_is_not_there(self, pgonce, stuck, observer):
        """Without it, nothing shows which batch Spark runs next: an acceptance might let another one through."""
        refused = pgonce("accept", "orders", "--reason", "because", "--yes", "--batch", 9)
        assert (refused.exit_code, "[CHECKPOINT_NOT_FOUND]" in refused.stderr) == (ExitCode.UNREADABLE, True)
        assert noted(observer) == []


class TestRetire:
    def test_a_sink_that_is_gone(self, pgonce, url, tmp_path, observer):
        """Two sinks too far apart: one is retired, noted, refused from then on; the other is recovered."""
        history(url, 5)
        history(url, 2, sink_name="audit")
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(0, 1), (0, 1))
        with pytest.raises(RecoveryError, match="RECOVERY_APART"):
            recover_at_once(checkpoint, url)
        unclear = pgonce("retire", "orders")
        assert (unclear.exit_code, "[SINK_NEEDED]" in unclear.stderr) == (ExitCode.NOT_FOUND, True)
        command = ("retire", "orders", "--sink", "audit", "--reason", "moved to another job")
        assert pgonce(*command).exit_code == ExitCode.OK
        assert noted(observer) == []
        assert pgonce(*command, "--yes").exit_code == ExitCode.OK
        assert noted(observer) == [("retire", 2, "moved to another job", None)]
        assert "[WRITER_GONE]" in pgonce(*command, "--yes").stderr
        assert recover_at_once(checkpoint, url).stands_at == 5
        write_checkpoint(checkpoint, entries(2, 3))
        assert verdict(url, checkpoint, 3, "new", sink_name="audit") is Verdict.FENCED
        accept = pgonce("accept", "orders", "--sink", "audit", "--batch", 9, "--reason", "r", "--yes")
        assert "[WRITER_GONE]" in accept.stderr

    def test_of_two_people_one_retires_it(self, url, observer):
        """One retirement is noted, and the other person is told when it was."""
        history(url, 5)
        error = at_once(lambda: retire_sink("orders", url, reason="moved"))
        assert error.code == "WRITER_GONE"
        assert "was retired or forgotten at 20" in error.what
        assert noted(observer) == [("retire", 5, "moved", None)]


def test_a_query_that_never_published_is_not_retired(pgonce, url):
    """It is no rival of any other, and the list forgets it within a day."""
    ensure_ledger(url)
    keep_failure(url, Failed(seen_by="planner", query_id=OTHER, query_name="clicks"), "TARGET_MISSING", "Gone.")
    assert "[QUERY_NOT_FOUND]" in pgonce("retire", "clicks", "--yes").stderr
    assert "clicks" in pgonce("status").stdout
