"""What the ledger says against a query's first batch is said before a row is computed; the commit decides again."""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.committed_rows import settings
from support.routed_rows import routes
from support.typed_rows import commit_typed

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import LedgerError, RefusedBatch
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.first_look import refuse_first_batch

EVENTS = destination("events")
ID = {"id": t.LongType()}
NONE = Remedies()


@pytest.fixture
def fed(url, admin):
    """A table that query q1 feeds, from offsets 0 to 10."""
    admin.execute("CREATE TABLE events (id bigint); CREATE TABLE others (id bigint)")
    commit_typed(url, 0, EVENTS, ID, [(1,)])
    return url


def look(url, where=EVENTS, number=0, sink=None, remedies=NONE, **batch):
    """What is said before the rows of a batch of another query."""
    batch = make_planned_batch(number, query_id="q2", **batch)
    refuse_first_batch(CommitSettings(url, remedies), batch, sink, where)


@pytest.mark.parametrize("where", [EVENTS, routes({"events": {}, "others": {}})], ids=["one table", "one of several"])
def test_a_rival_is_found(fed, where):
    """Another query fed a table from the same partitions: FOREIGN, with the ways out that the commit offers."""
    with pytest.raises(RefusedBatch, match=r"\[FOREIGN\]"):
        look(fed, where)


def test_a_rival_by_the_sinks_name(fed):
    """Where the tables are not known yet, as in a function, the sink's name is."""
    commit_typed(fed, 0, EVENTS, ID, [(1,)], query="q3")
    with pytest.raises(RefusedBatch, match=r"\[FOREIGN\]"):
        look(fed, None, sink="public.events")
    look(fed, None, sink="a function")


def test_what_the_commit_takes_passes(fed):
    """Another table, another source, or the user's word."""
    for arguments in (
        {"where": destination("others")},
        {"remedies": Remedies(independent=True)},
        {"start": {"0": {"u": {"0": 0}}}, "end": {"0": {"u": {"0": 5}}}},
        {"start": {"0": {"t": {"0": 10}}}, "end": {"0": {"t": {"0": 20}}}, "remedies": Remedies(replaces="q1")},
        # Rows that carry their positions may start before the end: only they tell which of them are stored.
        {"start": {"0": {"t": {"0": 5}}}, "end": {"0": {"t": {"0": 20}}}, "remedies": Remedies(replaces="q1")},
        # Later batches are for the commit, which knows what this query has published.
        {"number": 1},
    ):
        look(fed, **arguments)
    # Batch 0 of the query that is known may come again.
    refuse_first_batch(settings(fed), make_planned_batch(0), None, EVENTS)
    # The commit waits for a server that is away.
    look("postgresql://nobody@127.0.0.1:1/nowhere")


def test_no_lock_is_waited_for(fed):
    """Not even for the writer's row of the rival."""
    with psycopg.connect(fed) as other:
        other.execute("LOCK TABLE pgonce.writers IN EXCLUSIVE MODE")
        with pytest.raises(RefusedBatch):
            look(fed)


def test_a_role_that_may_not_create_the_ledger_is_told_so(url, admin, login):
    """The first batch creates it; a role that may not is told so."""
    admin.execute("CREATE TABLE events (id bigint)")
    look(url)
    with pytest.raises(LedgerError, match=r"\[LEDGER_NOT_PERMITTED\].*schema pgonce"):
        look(login.url)
    assert admin.execute("SELECT to_regnamespace('pgonce')").fetchone() == (None,)


def test_a_ledger_that_may_not_be_written(url, admin, login):
    """What every batch needs is looked for; a role with less than `pgonce init` grants may go on."""
    ensure_ledger(url)
    admin.execute(f"CREATE TABLE events (id bigint); GRANT USAGE ON SCHEMA pgonce TO {login.user}")
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA pgonce TO {login.user}")
    with pytest.raises(LedgerError, match=r"\[LEDGER_NOT_PERMITTED\].*INSERT on pgonce\.writers"):
        look(login.url)
    with pytest.raises(LedgerError, match=r"\[LEDGER_NOT_PERMITTED\].*pgonce\.batch_jobs"):
        refuse_first_batch(CommitSettings(login.url), None, None, EVENTS)
    for grant in grants(login.user):
        admin.execute(grant)
    look(login.url)
    refuse_first_batch(CommitSettings(login.url), None, None, EVENTS)
