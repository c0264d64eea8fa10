"""
What each query is said to do, what that is concluded from, and what needs attention.

Covers: offsets_store.status.states, and the views on which it stands.
"""

from __future__ import annotations

import threading
import uuid

import psycopg
import pytest
from support.dead_letters import put_aside
from support.ledger_history import KAFKA, OTHER, QUERY, RUN, fail, hear, publish, replay, take_over

from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.ledger.migrations import MIGRATIONS
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.status.ends import total_lag
from pgonce.offsets_store.status.states import STATES, TONES, MeasuredLag, QueryState, place_of, query_states, tone_of

MORE = {"0": {"t": {"0": 10, "1": 25}}}
LATER_RUN = "bbbbbbbb-2222-4222-8222-222222222222"


def only(store, measured=()) -> QueryState:
    """The state of the only query."""
    (state,) = store.states(measured)
    return state


def age(admin, seconds: float) -> None:
    """Move what has been published into the past."""
    admin.execute("UPDATE pgonce.batches SET committed_at = committed_at - make_interval(secs => %s)", [seconds])
    admin.execute(
        "UPDATE pgonce.writers SET updated_at = updated_at - make_interval(secs => %s), "
        "created_at = created_at - make_interval(secs => %s)",
        [seconds, seconds],
    )


def beat(admin, *, heard: float = 0, run_id: str = RUN, idle: float | None = None, ended: float | None = None) -> None:
    """What a listener has written of a run, so many seconds ago."""
    admin.execute(
        "INSERT INTO pgonce.heartbeats (query_id, run_id, listener, started_at, heard_at, idle_since, ended_at) SELECT "
        "%s, %s, 'driver pid 1', now() - make_interval(secs => 1000), now() - make_interval(secs => %s), "
        "now() - make_interval(secs => %s), now() - make_interval(secs => %s)",
        [QUERY, run_id, heard, idle, ended],
    )


class TestWithoutListener:
    """Only the ledger and the sessions of the server tell something."""

    def test_a_query_that_has_just_published_runs(self, url, store):
        """A batch within the last minute is enough."""
        publish(url, 3, KAFKA, rows=120)
        state = only(store)
        assert (state.state, state.because) == ("running", "it has published lately")
        assert (state.query_name, state.sink_name, state.batch_id, state.rows) == ("orders", "public.orders", 3, 120)

    def test_silence_is_not_called_an_end(self, url, store, admin):
        """After that it is quiet: idle or gone, which nobody can tell apart."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        state = only(store)
        assert state.state == "quiet"
        assert state.because.startswith("nothing shows whether")
        assert state.state_since == state.published_at

    def test_a_usual_pause_is_no_silence(self, url, store, admin):
        """A query with a batch every ten minutes runs for half an hour after the last one."""
        for batch_id in range(3):
            publish(url, batch_id, KAFKA)
            age(admin, 600)
        assert only(store).usual_interval_seconds == pytest.approx(600, abs=5)
        assert only(store).state == "running"
        age(admin, 1500)
        assert only(store).state == "quiet"

    def test_records_that_wait_make_silence_serious(self, url, store, admin):
        """A quiet query that is known to have unread records is stuck."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        hear(url, MORE)
        state = only(store)
        assert (state.state, state.lag) == ("stuck", 5)

    def test_a_session_shows_that_it_runs(self, url, store, admin):
        """A session with the name of its run is a sign of life, however long the batch takes."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        with psycopg.connect(url, application_name=application_name(RUN)) as session:
            session.execute("SELECT 1")
            assert only(store).state == "running"
        with psycopg.connect(url, application_name=application_name(LATER_RUN)):
            assert only(store).state == "quiet"

    def test_whom_a_commit_waits_for(self, url, store, admin):
        """A commit that waits for a lock is waiting, and the holder's session is named."""
        publish(url, 3, KAFKA)
        admin.execute("CREATE TABLE orders (id int)")
        with (
            psycopg.connect(url, application_name="a migration") as holder,
            psycopg.connect(url, application_name=application_name(RUN)) as waiter,
        ):
            holder.execute("LOCK TABLE orders")
            holder_pid = holder.info.backend_pid
            thread = threading.Thread(target=waiter.execute, args=("LOCK TABLE orders",))
            thread.start()
            state = next(found for _ in range(1000) if (found := only(store)).state == "waiting")
            holder.rollback()
            thread.join()
        assert state.waits_for.startswith(f"pid {holder_pid} (a migration, user ")


class TestWithListener:
    """The listener's heartbeats make it certain."""

    def test_heard_idle_stopped_and_gone(self, url, store, admin):
        """A run that is heard runs, or is idle; one that fell silent is gone; one that was heard to end is stopped."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        beat(admin, heard=5)
        assert only(store).state == "running"
        admin.execute("UPDATE pgonce.heartbeats SET idle_since = now() - interval '10 min'")
        assert (only(store).state, "nothing to read" in only(store).because) == ("idle", True)
        admin.execute("UPDATE pgonce.heartbeats SET heard_at = now() - interval '2 min'")
        assert only(store).state == "gone"
        admin.execute("UPDATE pgonce.heartbeats SET ended_at = heard_at")
        assert only(store).state == "stopped"

    @pytest.mark.parametrize(("ended_by", "says"), [("SIGTERM", "SIGTERM"), ("EXIT", "driver ended")])
    def test_a_driver_that_was_ended_is_gone_and_not_stopped(self, url, store, admin, ended_by, says):
        """A deployment, which starts another one soon, is a warning; without a successor it becomes critical."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        beat(admin, heard=5, ended=5)
        admin.execute("UPDATE pgonce.heartbeats SET ended_by = %s", [ended_by])
        state = only(store)
        assert (state.state, state.severity, state.failure_code) == ("gone", "warning", None)
        assert says in state.because
        admin.execute("UPDATE pgonce.heartbeats SET ended_at = now() - interval '11 min', heard_at = now()")
        assert (only(store).state, only(store).severity) == ("gone", "critical")
        beat(admin, run_id=LATER_RUN)
        admin.execute("UPDATE pgonce.heartbeats SET started_at = now() WHERE run_id = %s", [LATER_RUN])
        assert (only(store).state, only(store).severity) == ("running", None)

    def test_a_query_is_seen_from_its_start(self, url, store, admin):
        """It is starting before its first batch, and gone if its driver falls silent; others' queries are not shown."""
        publish(url, 3, KAFKA, query_id=OTHER, query_name="another")
        beat(admin, heard=5)
        state = next(one for one in store.states() if one.query_id == QUERY)
        assert (state.state, state.sink_name, state.batch_id, state.severity) == ("starting", None, None, None)
        assert state.state_since == state.created_at
        admin.execute("UPDATE pgonce.heartbeats SET idle_since = now()")
        assert next(one.state for one in store.states() if one.query_id == QUERY) == "idle"
        admin.execute("UPDATE pgonce.heartbeats SET heard_at = now() - interval '2 min'")
        (finding,) = store.health()
        assert (finding.query_id, finding.finding) == (QUERY, "gone")
        fail(url, "TARGET_MISSING")
        assert [one.state for one in store.states() if one.query_id == QUERY] == ["refused"]
        admin.execute("DELETE FROM pgonce.failures")
        hear(url, MORE)
        assert [one.query_id for one in store.states()] == [OTHER]

    def test_an_end_by_an_error_that_was_not_written_down(self, url, store, admin):
        """A query whose failure could not be stored is refused for what its listener heard, unless it was fenced."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        beat(admin, heard=120, ended=120)
        admin.execute("UPDATE pgonce.heartbeats SET ended_by = 'CONNECT_FAILED'")
        state = only(store)
        assert (state.state, state.because, state.severity) == ("refused", "CONNECT_FAILED", "critical")
        assert (state.failures, state.failure_message) == (1, None)
        admin.execute("UPDATE pgonce.heartbeats SET ended_by = 'FENCED'")
        assert only(store).state == "stopped"
        admin.execute("UPDATE pgonce.heartbeats SET ended_by = 'LOCKED'")
        publish(url, 3, KAFKA, sink_name="public.others")
        age(admin, 3600)
        fail(url, "LOCKED", seconds=120)
        by_sink = {state.sink_name: state.state for state in store.states()}
        assert by_sink == {"public.orders": "refused", "public.others": "stopped"}, "only one of the sinks failed"

    def test_a_listener_that_fell_silent_says_nothing_if_batches_come(self, url, store, admin):
        """A query that goes on without its listener is not gone."""
        publish(url, 3, KAFKA)
        beat(admin, heard=600)
        assert only(store).state == "running"
        age(admin, 700)
        assert only(store).state == "gone"
        publish(url, 4, MORE)
        age(admin, 4000)
        admin.execute("UPDATE pgonce.heartbeats SET heard_at = now() - interval '2 hours'")
        assert only(store).state == "quiet"

    def test_a_busy_query_that_was_killed_is_gone(self, url, store, admin):
        """With a batch each second, some were published after the last beat, which comes every 15 seconds."""
        publish(url, 3, KAFKA)
        age(admin, 100)
        beat(admin, heard=112)
        assert (only(store).state, only(store).severity) == ("gone", "warning")
        age(admin, 600)
        admin.execute("UPDATE pgonce.heartbeats SET heard_at = now() - interval '712 s'")
        assert (only(store).state, only(store).severity) == ("gone", "critical")

    def test_a_lag_that_does_not_shrink(self, url, store, admin):
        """Ten batches in a row that leave records behind, and no fewer at the end, are lagging."""
        publish(url, 3, KAFKA)
        for number in range(10):
            hear(url, MORE, batch_id=number, seconds=number)
        admin.execute("UPDATE pgonce.progress SET lag = 5 + batch_id")
        assert (only(store).state, only(store).lag) == ("lagging", 5)
        admin.execute("UPDATE pgonce.progress SET lag = 50 - batch_id")
        assert only(store).state == "running"


class TestLag:
    def test_is_the_lag_of_the_python_api(self, url, store):
        """The view computes from progress what OffsetsStore.status_of computes."""
        publish(url, 3, KAFKA)
        hear(url, MORE)
        ((_, lag),) = store.status_of("orders")
        assert only(store).lag == total_lag(lag) == 5

    @pytest.mark.parametrize(
        "latest",
        [
            pytest.param({"0": {"t": {"0": 9, "1": 25}}}, id="before-the-stored-end"),
            pytest.param({"0": {"t": {"0": 10, "1": 25, "2": 4}}}, id="a-new-partition"),
            pytest.param({"0": {"t": {"1": 25}}}, id="a-partition-is-missing"),
        ],
    )
    def test_is_unknown_if_one_partition_is(self, url, store, latest):
        """A sum that lacks a partition would be too small, so there is none."""
        publish(url, 3, KAFKA)
        hear(url, latest)
        ((_, lag),) = store.status_of("orders")
        assert only(store).lag is total_lag(lag) is None

    def test_what_was_measured_at_the_broker_counts_more(self, url, store, admin):
        """A broker's lag takes the place of the listener's, and seconds and retention make states of their own."""
        publish(url, 3, KAFKA)
        hear(url, MORE)
        now = only(store).published_at
        assert only(store, [MeasuredLag(QUERY, "public.orders", 7, 3.0, 1.0, now)]).lag == 7
        assert only(store, [MeasuredLag(QUERY, "public.orders", 7, 90.0, 1.0, now)]).state == "lagging"
        assert only(store, [MeasuredLag(QUERY, "public.orders", 7, 90.0, 95.0, now)]).state == "expiring"
        assert only(store, [MeasuredLag(OTHER, "public.orders", 7, 90.0, 95.0, now)]).lag == 5
        admin.execute("INSERT INTO pgonce.measured_lag VALUES (%s, 'public.orders', 9, 90, 95, now())", [QUERY])
        assert (only(store).state, only(store).lag) == ("expiring", 9)
        admin.execute("UPDATE pgonce.measured_lag SET measured_at = now() - interval '11 min'")
        assert (only(store).state, only(store).lag) == ("running", 5)
        admin.execute("UPDATE pgonce.measured_lag SET measured_at = now() + interval '1 day'")
        assert only(store).lag == 5, "a host whose clock is ahead has measured it"

    def test_records_that_expire_while_a_query_is_stopped(self, url, store, admin):
        """A query that was stopped needs attention before Kafka deletes what it has not read."""
        publish(url, 3, KAFKA)
        beat(admin, heard=10, ended=0)
        now = only(store).published_at
        state = only(store, [MeasuredLag(QUERY, "public.orders", 7, 90.0, 95.0, now)])
        assert (state.state, state.help.partition(":")[0]) == ("expiring", "It was stopped")


class TestFailures:
    def test_a_failure_is_shown_until_a_batch_is_published(self, url, store, admin):
        """The query is refused, since the first failure, with the number of failures; a published batch ends it."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        fail(url, attempts=2, seconds=100)
        fail(url, run_id=LATER_RUN, attempts=3)
        state = only(store)
        assert (state.state, state.because) == ("refused", "NOT_NULL_VIOLATION at batch 4")
        assert (state.failure_code, state.failed_batch_id, state.failures) == ("NOT_NULL_VIOLATION", 4, 5)
        assert state.state_since == state.failing_since < state.published_at.now(state.published_at.tzinfo)
        publish(url, 4, MORE)
        assert (only(store).state, only(store).failure_code) == ("running", None)

    def test_a_replay_that_is_skipped_ends_it_too(self, url, store, admin):
        """A restart that finds its batch published has got past the failure."""
        batch = publish(url, 3, KAFKA)
        age(admin, 3600)
        fail(url, seconds=10)
        replay(url, batch)
        assert only(store).state == "quiet"

    def test_a_later_run_that_is_heard_ends_it_too(self, url, store, admin):
        """If the listener hears a run that began after the failure, the failure is over."""
        publish(url, 3, KAFKA)
        age(admin, 3600)
        fail(url, seconds=2000)
        beat(admin, run_id=LATER_RUN)
        assert only(store).state == "running"
        fail(url, run_id=LATER_RUN)
        assert only(store).state == "refused"

    def test_an_old_run_never_marks_its_successor(self, url, store):
        """What a run meets after another has published in its place says nothing of the other."""
        publish(url, 3, KAFKA)
        publish(url, 4, MORE, run_id=LATER_RUN)
        fail(url, "FENCED", run_id=str(uuid.uuid4()))
        fail(url, "LOCKED", run_id=RUN)
        assert only(store).state == "running"
        fail(url, "LOCKED", run_id=LATER_RUN)
        assert only(store).state == "refused"

    def test_a_query_that_never_published_anything(self, url, store):
        """A query that fails at its first batch is listed, without a batch."""
        fail(url, "TARGET_MISSING", query_id=OTHER)
        state = only(store)
        assert (state.query_id, state.state, state.batch_id) == (OTHER, "refused", None)
        (finding,) = store.health()
        assert (finding.severity, finding.finding, finding.help) == (
            "critical",
            "refused",
            "pgonce explain TARGET_MISSING",
        )

    def test_a_file_not_found_leads_to_the_page_about_lost_checkpoints(self, url, store):
        """Spark knows only that a file is not found; the alert says what that may mean, and what to do."""
        fail(url, "java.io.FileNotFoundException", query_id=OTHER)
        (finding,) = store.health()
        assert "recovering" in finding.help

    def test_what_to_do_is_what_the_error_said(self, url, store, admin):
        """An alert tells the GRANT or the ALTER that the driver's log has; without it, a command that works."""
        fail(url, "TARGET_MISSING", query_id=OTHER)
        admin.execute("UPDATE pgonce.failures SET remedy = 'CREATE TABLE public.orders (...).'")
        assert [one.help for one in store.health()] == ["Help: CREATE TABLE public.orders (...)."]
        admin.execute("UPDATE pgonce.failures SET remedy = NULL, code = 'java.lang.Error'")
        assert [one.help for one in store.health()] == [f"pgonce errors --query {OTHER}"]

    def test_a_query_that_never_published_is_forgotten_after_a_day(self, url, store):
        """No command takes it away: somebody has mistyped an option, and started another query since."""
        fail(url, "TARGET_MISSING", query_id=OTHER, seconds=90_000)
        assert store.states() == []
        assert store.health() == []

    def test_another_query_of_its_name_has_taken_its_place(self, url, store, admin):
        """It was started again on a new checkpoint, as it was told to, and goes on under another id."""
        fail(url, "FOREIGN", query_id=OTHER, seconds=10)
        admin.execute("UPDATE pgonce.failures SET query_name = 'orders'")
        assert only(store).state == "refused"
        publish(url, 3, KAFKA)
        assert (only(store).query_id, only(store).state) == (QUERY, "running")

    def test_failures_before_and_after_the_sink_was_known_are_of_one_query(self, url, store, admin):
        """The newest code is shown, with how often just that came and since when."""
        fail(url, "TARGET_MISSING", query_id=OTHER, seconds=60, attempts=3)
        admin.execute("UPDATE pgonce.failures SET sink_name = NULL")
        fail(url, "TOO_MANY_DEAD_LETTERS", query_id=OTHER, seconds=5)
        state = only(store)
        assert (state.sink_name, state.failure_code, state.failures) == ("public.orders", "TOO_MANY_DEAD_LETTERS", 1)
        assert 0 < (state.failing_since.now(state.failing_since.tzinfo) - state.failing_since).total_seconds() < 50


class TestEnded:
    def test_retired_and_replaced_queries_are_neither_healthy_nor_ill(self, url, store, admin):
        publish(url, 7, KAFKA)
        take_over(url, publish(url, 0, KAFKA, query_id=OTHER), QUERY)
        admin.execute("UPDATE pgonce.writers SET retired_at = now() WHERE query_id = %s", [OTHER])
        fail(url)
        assert {one.query_id: one.state for one in store.states()} == {QUERY: "replaced", OTHER: "retired"}
        assert store.health() == []


class TestHealth:
    def test_finds_what_the_states_do_not_show(self, url, store, admin):
        """Dead letters, replays, restarts, disagreements and old staging tables are findings with their own command."""
        for batch in [publish(url, batch_id, KAFKA) for batch_id in range(4)][:3]:
            replay(url, batch)
        put_aside(admin, {}, code="23502")
        admin.execute(
            "INSERT INTO pgonce.replays (writer_id, generation, batch_id, run_id, attempt) "
            "SELECT writer_id, 0, 3, 'run ' || n, gen_random_uuid() FROM pgonce.writers, generate_series(1, 6) AS n"
        )
        hear(url, KAFKA, disagreement="batch 3 ended elsewhere")
        admin.execute(
            "INSERT INTO pgonce.staged_tables "
            "VALUES ('staged_1', %s, 'public.orders', 'r', 3, now() - interval '2 days')",
            [QUERY],
        )
        found = {one.finding: one for one in store.health()}
        assert set(found) == {"dead letters", "replays", "restarts", "disagreement", "staging tables"}
        assert store.health()[0].finding == "disagreement"
        assert found["dead letters"].what.startswith("1 rows")
        assert "23502" in found["dead letters"].what
        assert found["replays"].what.startswith("one run has skipped 3 batches")
        assert found["restarts"].what.startswith("7 runs have begun")
        assert found["disagreement"].severity == "critical"


def test_the_states_are_those_that_the_view_knows():
    """Python's list of states and the view's are the same."""
    (form,) = MIGRATIONS
    decided = form.ddl.partition("CREATE VIEW pgonce.queries")[2]
    assert all(f"'{state}'" in decided for state in STATES)


def test_a_reader_may_ask_for_the_states_of_some_queries(url, store):
    """A reader may ask for some ids in its own transaction."""
    publish(url, 3, KAFKA)
    with reading(url) as connection:
        assert [one.query_id for one in query_states(connection, [QUERY])] == [QUERY]
        assert query_states(connection, [OTHER]) == []


def test_a_state_of_a_newer_ledger_is_shown():
    """A state that this code does not know has a tone and a place, the last one."""
    assert set(TONES) == set(STATES)
    assert tone_of("dreaming") == "still"
    assert place_of("dreaming") == len(STATES) > max(map(place_of, STATES))
