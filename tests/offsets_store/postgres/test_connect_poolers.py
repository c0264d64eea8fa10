"""
Poolers that give their sessions to other clients, and answer in Postgres's place.

Covers: offsets_store.postgres.translate.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.batches import make_batch
from support.committed_rows import appending, ids, settings, stage_one

from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict

pytestmark = pytest.mark.usefixtures("events")


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_frozen_predecessor_is_ended(mode, admin, pgbouncer, database):
    """Its session waits for its client, whichever process ids the pooler has made up for the two."""
    url = pgbouncer(mode).url(database)
    commit_batch(settings(url), make_batch(0), appending(1))
    with connect(url) as frozen:
        frozen.execute("SELECT set_config('application_name', %s, true)", [application_name("run 1")])
        frozen.execute("SELECT * FROM pgonce.writers FOR UPDATE")
        assert commit_batch(settings(url, retry_timeout=60), make_batch(1, run_id="run 2"), appending(2)) is Verdict.NEW
        with pytest.raises(psycopg.OperationalError):
            frozen.execute("SELECT 1")
    assert ids(admin) == [1, 2]


def test_a_commit_whose_answer_is_the_poolers_own_is_unknown(admin, pgbouncer, proxy, database):
    """Postgres has committed, the pooler says that it lost it, and Postgres stays away; later the ledger tells."""
    through_proxy = {**conninfo_to_dict(proxy.url), "host": "127.0.0.1"}
    url = pgbouncer(server=through_proxy, query_wait_timeout="2").url(database)
    commit_batch(settings(url), make_batch(0), appending(1))
    hold = proxy.hold_after_commit(touching="events")
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(commit_batch, settings(url, retry_timeout=1), make_batch(1), appending(2))
        hold.wait()
        proxy.stop()
        with pytest.raises(PgonceError, match="COMMIT_UNKNOWN"):
            committing.result()
    proxy.start()
    assert ids(admin) == [1, 2]
    assert commit_batch(settings(url, retry_timeout=60), make_batch(1, run_id="run 2"), appending(2)) is Verdict.REPLAY
    assert ids(admin) == [1, 2]


def test_a_commit_that_the_pooler_has_no_patience_for_lands(admin, pgbouncer, database):
    """query_timeout cuts the client off while Postgres is still at COMMIT: the next try finds its own batch."""
    admin.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(4); RETURN NULL; END'"
    )
    admin.execute(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    url = pgbouncer(query_timeout="1").url(database)
    # Each wait for the first transaction is cut short before the pooler does.
    patient = settings(url, retry_timeout=60, lock_timeout=0.5)
    assert commit_batch(patient, make_batch(0), appending(1)) is Verdict.LANDED
    assert ids(admin) == [1]


def test_statement_pooling_is_refused_at_once(admin, pgbouncer, database):
    """One code for commits, tasks that stage, and readers, which names the mode that is needed; nobody waits."""
    url = pgbouncer("statement").url(database)
    for refused in (
        lambda: commit_batch(settings(url, retry_timeout=60), make_batch(0), appending(1)),
        lambda: stage_one(url, retry_timeout=60),
        lambda: OffsetsStore(url).queries(),
    ):
        began = time.monotonic()
        with pytest.raises(PgonceError, match="STATEMENT_POOLING.*pool_mode"):
            refused()
        assert time.monotonic() - began < 20


def test_a_lost_line_before_commit_is_not_unknown(admin, proxy):
    """What broke before COMMIT was sent is known not to be written, though Postgres stays away."""
    commit_batch(settings(proxy.url), make_batch(0), appending(1))
    hold = proxy.hold_in_copy(touching="events")
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(commit_batch, settings(proxy.url, retry_timeout=0.5), make_batch(1), appending(2))
        hold.wait()
        proxy.stop()
        with pytest.raises(PgonceError, match="CONNECT_FAILED"):
            committing.result()
    assert ids(admin) == [1]


def test_a_session_that_an_administrator_ends_costs_a_try(admin, pooled_url):
    """The pooler says in its own words that the session is gone; the batch is written all the same, once."""
    tries = []

    def publish(connection, planned, stored):
        tries.append(time.monotonic())
        if len(tries) == 1:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
                [application_name("run 1")],
            )
        return appending(1).publish(connection, planned, stored)

    commit_batch(settings(pooled_url, retry_timeout=60), make_batch(0), Work(lambda _: "public.events", publish))
    assert len(tries) == 2
    assert ids(admin) == [1]
