"""
Which sentences of docs/operations.md and docs/security.md name a time, a bound or a wait, and which tests prove them?

Pure. Invariant: a sentence is found by what stands in it, not by being listed here; so one that nobody has listed is
seen. ``tests/repository/test_claims.py`` compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PAGES = ("docs/operations.md", "docs/security.md")

_WORD = r"half an?|an?|one|two|three|four|five|ten|fifteen|twenty|thirty|sixty|a few|a thousand|several"
_UNIT = r"ms|s|seconds?|minutes?|hours?|days?|KiB|MiB|GiB|kB|MB|GB|bytes|events|connections"
_BOUND = re.compile(
    rf"\b(\d[\d.,]*[ -]?|({_WORD})( and a half)?[ -])({_UNIT})\b"
    r"|\bwait(s|ed|ing)?\b|\(\d[\d.]*( s)?\)|\bat (most|least)\b|\bnewest `?\w+`? batches\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Claim:
    """
    Words that stand in one sentence of a page, and the tests that prove the sentence; each as ``file::name``.

    :param why_none: for a sentence that has such a word, and claims nothing of pgonce that a test could show.
    """

    words: str
    proofs: tuple[str, ...] = ()
    why_none: str | None = None


_LOCKS = "tests/stress/test_locks.py::test_a_query_waits_for_a_lock_and_names_its_holder"
_AWAY = "tests/stress/test_away.py::test_a_query_waits_and_goes_on"
_AWAY_LOG = "tests/stress/test_away.py::test_the_log_says_so_once_a_try"
_NUMBERS = "tests/repository/test_claims.py::test_numbers_are_those_of_the_code"
_FROZEN = "tests/offsets_store/commit/test_commit.py::test_a_frozen_driver_that_holds_the_writer_is_ended"
_RUNNING = "tests/offsets_store/recovery/test_still_running.py::TestRunning"
_MANY = "tests/offsets_store/postgres/test_connect_many_queries.py"
_WAITS = "tests/offsets_store/commit/test_commit_watch.py"
_BOUNDED = "tests/offsets_store/postgres/test_bounds_of_locks.py"
_VANISHED = "tests/offsets_store/postgres/test_bounds_vanished_host.py"
_RECOVERY_AWAY = "tests/offsets_store/recovery/test_retrying.py::TestAway"
_STANDBY = f"{_WAITS}::test_a_commit_that_waits_for_a_standby_says_so"

CLAIMS: tuple[Claim, ...] = (
    # operations.md
    Claim(
        "older than ten minutes, because nobody has looked",
        ("tests/offsets_store/status/test_lag.py::TestLag::test_what_was_measured_long_ago_is_not_the_lag_of_now",),
    ),
    Claim(
        "a thousand events wait, it drops events",
        ("tests/offsets_store/progress/test_listener.py::TestTrouble::test_a_full_queue_drops_and_returns", _NUMBERS),
    ),
    Claim(
        "newest 1,000 events of each query",
        ("tests/offsets_store/progress/test_record_event.py::TestFilling::test_old_rows_are_pruned", _NUMBERS),
    ),
    Claim("A commit waits `lockTimeout` seconds (30)", (_LOCKS, _NUMBERS)),
    Claim("If the lock is still held when `retryTimeout` (120) is over", (_LOCKS, _NUMBERS)),
    Claim("and so at every further wait", (_LOCKS,)),
    Claim(
        "While a commit waits, it holds the lock on its writer's row",
        ("tests/offsets_store/commit/test_commit.py::test_a_commit_that_waits_holds_its_writers_row",),
    ),
    Claim(
        "A large batch of `foreachBatch` (more than 16 MiB)",
        ("tests/sink/foreach_batch/test_arriving_batches.py::test_rows_are_copied_while_others_are_made", _NUMBERS),
    ),
    Claim(
        "A small one may hold both for half a second",
        ("tests/sink/foreach_batch/test_early_commit.py::test_a_transaction_waits_only_so_long", _NUMBERS),
    ),
    Claim("If its session belongs to pgonce and waits for its client", (_FROZEN,)),
    Claim("set `lockTimeout` to a few seconds", why_none="advice"),
    Claim(
        "a running query waits: it tries again after 0.1 s",
        (_AWAY, _AWAY_LOG, "tests/repository/test_claims.py::test_pauses_between_tries", _NUMBERS),
    ),
    Claim(
        "bounded by libpq's `connect_timeout` (15 s",
        (
            "tests/offsets_store/postgres/test_connect.py::test_a_server_that_does_not_answer_is_waited_for_so_long",
            _NUMBERS,
        ),
    ),
    Claim(
        "A task that stages waits in the same way.",
        (_AWAY, "tests/sink/staging/test_stager.py::test_a_server_that_comes_back_in_time_is_no_failure"),
    ),
    Claim(
        "32 MiB of them at most",
        ("tests/sink/staging/test_stager.py::test_rows_are_staged_copy_by_copy", _NUMBERS),
    ),
    Claim("A waiting task keeps its slot", why_none="what Spark does with a task that runs"),
    Claim(
        "The ledger keeps the newest `retainBatches` batches",
        ("tests/offsets_store/commit/test_commit.py::test_old_records_are_pruned_and_the_newest_are_kept", _NUMBERS),
    ),
    Claim(
        "`--undo` brings the newest one back",
        ("tests/offsets_store/recovery/test_undo.py::TestUndo::test_again_and_again",),
    ),
    Claim(
        "younger than 5 seconds (`--quiet-for`)",
        (f"{_RUNNING}::test_a_young_file", f"{_RUNNING}::test_a_young_row", _NUMBERS),
    ),
    Claim("`--wait` waits for the silence", (f"{_RUNNING}::test_waiting",)),
    Claim("`recover_checkpoint` waits 15 seconds", (f"{_RUNNING}::test_waiting", _NUMBERS)),
    Claim(
        "an `ALTER TABLE` waits for the batch that is under way",
        (
            "tests/sink/writing/table/test_lock.py::test_an_alter_may_come_at_every_step_of_the_commit",
            "tests/chaos/administrators.py::Alter",
        ),
    ),
    Claim("asynchronously one a second by default", why_none="what Spark does by itself"),
    Claim(
        "For a stateless query `recover` does not wait for the failed start",
        ("tests/offsets_store/recovery/test_plan.py::TestForward::test_asynchronous",),
    ),
    Claim(
        "recovery would wait for it for ever",
        ("tests/offsets_store/recovery/test_by_hand.py::TestRetire::test_a_sink_that_is_gone",),
    ),
    Claim(
        "A commit holds one connection and never asks for a second", (f"{_MANY}::test_a_commit_needs_one_connection",)
    ),
    Claim(
        "The pool has 64 connections at most",
        (
            f"{_MANY}::test_two_hundred_queries_begin_at_once",
            f"{_MANY}::test_a_bound_that_is_no_number_is_refused",
            _NUMBERS,
        ),
    ),
    Claim(
        "A commit that finds none free waits, says so every 30 seconds",
        (f"{_MANY}::test_who_finds_none_free_waits_and_says_why", _NUMBERS),
    ),
    Claim(
        "Leave the pooler one session more", why_none="advice; what needs the session is proven with its own sentence"
    ),
    Claim(
        "with the same `url` waits as it does for a restart",
        (
            f"{_WAITS}::test_a_password_that_is_rotated_is_waited_for",
            f"{_WAITS}::test_a_password_that_stays_wrong_fails_in_the_end",
        ),
    ),
    Claim(
        "a batch may begin with a first login",
        (f"{_WAITS}::test_a_first_login_that_is_refused_fails_at_once",),
    ),
    Claim("no standby to confirm it, Postgres lets COMMIT wait without a bound", (_STANDBY,)),
    Claim(
        "No timeout of a session ends this wait.", why_none="what Postgres does; the commit lifts those that there are"
    ),
    Claim("`query.stop()` waits for it, and every 30 seconds the log says", (_STANDBY, _NUMBERS)),
    Claim("or whatever else the session waits for", (_STANDBY,)),
    Claim("which answers all COMMITs that wait", why_none="what Postgres does"),
    Claim("Leave the waiting session alone", why_none="what Postgres does with a COMMIT that is cancelled"),
    Claim(
        "A driver that is killed meanwhile leaves its session waiting",
        (f"{_WAITS}::test_a_line_that_breaks_while_a_standby_is_away",),
    ),
    Claim(
        "are waited for in the same way: a commit and a task try again",
        (
            f"{_BOUNDED}::TestTheLedger::test_a_first_commit_waits_for_a_migration",
            f"{_BOUNDED}::TestStaging::test_a_task_waits_and_goes_on",
        ),
    ),
    Claim(
        "`pgonce init` wait ten seconds",
        (
            f"{_BOUNDED}::TestTheLedger::test_init_says_who_holds_it",
            f"{_BOUNDED}::TestTheLedger::test_who_only_reads_waits_no_longer",
            _NUMBERS,
        ),
    ),
    Claim(
        "60 seconds after the last sweep sweeps again",
        (
            "tests/sink/data_source/test_commit_parcels.py::test_what_an_older_runs_task_stages_after_the_sweep_goes_with_a_later_batch",
            "tests/sink/data_source/test_commit_parcels.py::test_between_two_sweeps_a_batch_without_staged_rows_asks_nothing",
            _NUMBERS,
        ),
    ),
    Claim(
        "A sweep of staging tables waits for one second", (f"{_BOUNDED}::TestStaging::test_the_sweep_waits_for_nobody",)
    ),
    Claim(
        "A query that is started while Postgres is away waits",
        (f"{_RECOVERY_AWAY}::test_it_waits_and_goes_on", f"{_RECOVERY_AWAY}::test_the_bound_is_that_of_a_commit"),
    ),
    Claim("Both ends call a line dead after", (f"{_VANISHED}::TestBounds::test_the_defaults", _NUMBERS)),
    Claim("and have a `tcp_user_timeout` of 60 s", (f"{_VANISHED}::TestBounds::test_the_defaults", _NUMBERS)),
    Claim("would send that again for 15 minutes", why_none="what TCP does by itself"),
    Claim(
        "a listener notices after at most 60 s",
        (
            f"{_VANISHED}::TestTheServersHost::test_a_commit_notices_and_goes_on",
            f"{_VANISHED}::TestTheServersHost::test_a_task_that_stages_notices_and_goes_on",
            f"{_VANISHED}::TestTheServersHost::test_the_listener_notices_and_goes_on",
            "tests/stress/test_vanished.py::test_a_query_notices_and_goes_on",
        ),
    ),
    Claim(
        "the log's first line comes 15 s later",
        (f"{_VANISHED}::TestTheServersHost::test_a_commit_notices_and_goes_on", _NUMBERS),
    ),
    Claim(
        "Postgres ends its session after at most 60 s",
        (
            f"{_VANISHED}::TestTheClientsHost::test_a_commit_that_holds_the_writer",
            f"{_VANISHED}::TestTheClientsHost::test_a_task_that_stages",
        ),
    ),
    Claim(
        "its commit ends such a session after one `lockTimeout`",
        (_FROZEN, f"{_RUNNING}::test_a_session_that_a_dead_host_left"),
    ),
    Claim(
        "if it is not given, the idle time plus that many intervals", (f"{_VANISHED}::TestBounds::test_what_url_sets",)
    ),
    Claim("For example, to notice after 20 s", (f"{_VANISHED}::TestBounds::test_what_url_sets",)),
    Claim(
        "takes no rows for so long (a COPY that waits for a lock",
        (f"{_VANISHED}::TestBounds::test_a_commit_may_wait_longer_for_a_lock",),
    ),
    Claim(
        "may be silent for `lockTimeout` and 30 seconds more",
        (f"{_VANISHED}::TestBounds::test_a_commit_may_wait_longer_for_a_lock",),
    ),
    Claim("Spark empties a pool that was idle for a minute", why_none="what Spark does"),
    Claim(
        "a query that reads the same again is published a second time",
        ("tests/offsets_store/recovery/test_first_contact.py::TestForget",),
    ),
    Claim(
        "the command says at once that Postgres cannot be reached",
        (
            f"{_RECOVERY_AWAY}::test_past_the_bound_it_fails_by_name",
            f"{_RECOVERY_AWAY}::test_a_command_waits_where_it_is_told_to",
        ),
    ),
    Claim(
        "A session does not count as a sign of life if its transaction has been waiting",
        (f"{_RUNNING}::test_a_session_that_a_dead_host_left", f"{_RUNNING}::test_a_copy_whose_rows_have_stopped"),
    ),
    Claim(
        "waited for in vain for 10 seconds",
        (f"{_RUNNING}::test_a_session_that_a_dead_host_left", f"{_RUNNING}::test_a_commit_that_holds_its_row"),
    ),
    Claim(
        "an older snapshot does not see what was committed while it waited",
        ("tests/sink/writing/test_start_over.py::TestRefused::test_other_isolation_levels",),
    ),
    Claim(
        "if a query is in the middle of a batch for more than 10 seconds (`RECOVERY_RUNNING`)",
        (
            "tests/offsets_store/rebuild/test_swap.py::TestRefused::test_a_writer_in_the_middle_of_a_batch",
            "tests/offsets_store/rebuild/test_swap.py::TestRefused::test_a_reader_that_holds_a_table",
        ),
    ),
    # security.md
    Claim(
        "after 10 s at most each, one that draws out the handshake",
        ("tests/security/test_receiver_line.py::test_many_silent_callers_keep_nobody_waiting",),
    ),
    Claim(
        "refused with `CONNECT_REFUSED`: at once, or, by a process that was let in before",
        (
            "tests/security/test_tls.py::test_a_server_that_cannot_prove_itself_is_refused",
            "tests/security/test_tls.py::test_a_server_without_tls_is_refused_where_tls_is_asked_for",
            f"{_WAITS}::test_a_password_that_stays_wrong_fails_in_the_end",
        ),
    ),
    Claim(
        "at most the key of a row",
        ("tests/sink/data_source/receiver/test_reception.py::test_a_refused_row_of_a_guess_is_shown_in_no_log",),
    ),
    Claim(
        "names of more than 63 bytes",
        ("tests/security/test_injection.py::test_a_name_that_postgres_would_cut_is_refused",),
    ),
    Claim(
        "answers slowly | It is waited for",
        ("tests/offsets_store/checkpoint/test_files_object_store.py::test_a_slow_store",),
    ),
    Claim(
        "rows of a batch beyond 64 MiB wait in a file",
        ("tests/sink/foreach_batch/test_arriving_batches.py::test_rows_can_be_had_again", _NUMBERS),
    ),
)


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page in Markdown, each on one line, without its headings and code blocks."""
    text = re.sub(r"^```.*?^```$", "\n", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#+ .*$", "\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?;:])\)?\s+(?=[A-Z`*(\[])", " ".join(paragraph.split()))


def bounds(page: str) -> list[str]:
    """The sentences that name a time, a bound or a wait."""
    return [sentence for sentence in sentences(page) if _BOUND.search(sentence)]
