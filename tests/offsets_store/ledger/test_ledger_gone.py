"""The ledger is dropped under a driver that has used it."""

from __future__ import annotations

import pytest
from support.batches import make_batch
from support.committed_rows import appending, ids, settings, stage_one

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import migrate
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies

pytestmark = pytest.mark.usefixtures("events")


@pytest.mark.parametrize("statement", ["DROP SCHEMA pgonce CASCADE", "DROP TABLE pgonce.batches CASCADE"])
def test_a_ledger_that_was_dropped_is_called_gone(admin, url, statement):
    """The next batch of a running query says what happened, and which ways there are; nothing is written."""
    commit_batch(settings(url), make_batch(0), appending(1))
    admin.execute(statement)
    with pytest.raises(PgonceError, match="LEDGER_GONE.*adoptCheckpoint"):
        commit_batch(settings(url), make_batch(1), appending(2))
    assert ids(admin) == [1]


def test_a_task_that_stages_says_so_too(admin, url):
    """A ledger that was dropped is no lack of a privilege."""
    stage_one(url)
    admin.execute("DROP SCHEMA pgonce CASCADE; DROP SCHEMA pgonce_staging CASCADE")
    with pytest.raises(PgonceError, match="LEDGER_GONE"):
        stage_one(url)


def test_a_ledger_that_was_restored_without_its_staging_schema(admin, url):
    """A dump of the schema pgonce alone does not have it: a task says what to run, and that creates it."""
    stage_one(url)
    admin.execute("DROP SCHEMA pgonce_staging CASCADE")
    with pytest.raises(PgonceError, match=r"STAGING_FAILED.*pgonce init --role"):
        stage_one(url)
    migrate(admin)
    stage_one(url)


def test_a_fresh_ledger_in_its_place_is_not_it(admin, url):
    """A writer that has committed notices that the ledger is another one; adoptCheckpoint goes on with that."""
    commit_batch(settings(url), make_batch(0), appending(1))
    admin.execute("DROP SCHEMA pgonce CASCADE")
    migrate(admin)
    with pytest.raises(PgonceError, match="LEDGER_GONE.*q1"):
        commit_batch(settings(url), make_batch(1), appending(2))
    adopting = settings(url, remedies=Remedies(adopt_checkpoint=1))
    assert commit_batch(adopting, make_batch(1), appending(2)) is Verdict.NEW
    assert ids(admin) == [1, 2]


def test_a_database_that_fell_back_before_the_first_batch_asks_for_a_new_checkpoint(admin, url):
    """A failover took all batches of a young query: to adopt its checkpoint would leave them out."""
    for number in range(2):
        commit_batch(settings(url), make_batch(number), appending(number))
    admin.execute("TRUNCATE pgonce.writers CASCADE; TRUNCATE events")
    with pytest.raises(PgonceError, match="LEDGER_GONE.*empty checkpoint"):
        commit_batch(settings(url), make_batch(2), appending(2))
    # So says a process that is started later; this one knows nothing of that query.
    with pytest.raises(PgonceError, match="UNKNOWN.*restore both .*empty checkpoint"):
        commit_batch(settings(url), make_batch(2, query_id="q3"), appending(2))
    for number in range(3):
        commit_batch(settings(url), make_batch(number, query_id="q2"), appending(number))
    assert ids(admin) == [0, 1, 2]


def test_a_query_that_adopts_makes_a_new_ledger(admin, url):
    """In the process that has seen the old one go, too."""
    commit_batch(settings(url), make_batch(0), appending(1))
    admin.execute("DROP SCHEMA pgonce CASCADE")
    adopting = settings(url, remedies=Remedies(adopt_checkpoint=1))
    with pytest.raises(PgonceError, match="LEDGER_GONE"):
        commit_batch(adopting, make_batch(1), appending(2))
    assert commit_batch(adopting, make_batch(1, run_id="run 2"), appending(2)) is Verdict.NEW
    assert ids(admin) == [1, 2]


def test_a_table_of_the_users_that_is_missing_is_not_the_ledger(admin, url):
    """Only the ledger's own names stand for it."""
    commit_batch(settings(url), make_batch(0), appending(1))
    admin.execute("DROP TABLE events")
    with pytest.raises(PgonceError, match="TARGET_MISSING"):
        commit_batch(settings(url), make_batch(1), appending(2))
