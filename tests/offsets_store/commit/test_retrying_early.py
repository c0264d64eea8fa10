"""A transaction that begins before all rows are there is one try, and the commit that follows makes up for it."""

from __future__ import annotations

import pytest
from support.batches import make_batch
from support.committed_rows import appending, ids, settings

from pgonce.offsets_store.commit.retrying import EarlyTry, commit_batch
from pgonce.offsets_store.commit.work import NotNowError, Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict


@pytest.fixture(autouse=True)
def published(url, events):
    """Batch 0."""
    commit_batch(settings(url), make_batch(0), appending(1))


def putting_off(work):
    """The same work, whose rows turn out to be missing once they are written."""

    def publish(*of):
        work.publish(*of)
        raise NotNowError("two rows are missing")

    return Work(work.name_sink, publish)


def test_a_try_that_succeeds_is_the_commit(admin, url):
    """Its verdict says so, and the rows are there."""
    early = EarlyTry(settings(url))
    early.begin(make_batch(1), appending(2))
    assert early.verdict is Verdict.NEW
    assert ids(admin) == [1, 2]


def test_a_try_that_is_put_off_leaves_nothing(admin, url, caplog):
    """It is rolled back, says why, and the same batch is then committed as if it had not been."""
    early = EarlyTry(settings(url))
    with caplog.at_level("INFO", "pgonce"):
        early.begin(make_batch(1), putting_off(appending(2)))
    assert "two rows are missing" in caplog.text
    assert (early.verdict, early.outcome_unknown, ids(admin)) == (None, False, [1])
    assert early.commit(make_batch(1), appending(2)) is Verdict.NEW
    assert ids(admin) == [1, 2]


def test_a_try_does_not_wait_for_postgres(admin, url, proxy):
    """What passes by itself is waited for by the commit that follows, which has the rows."""
    early = EarlyTry(settings(proxy.url, retry_timeout=60))
    proxy.cut_in_copy(touching="events")
    early.begin(make_batch(1), appending(2))
    assert (early.verdict, early.outcome_unknown, ids(admin)) == (None, False, [1])
    assert early.commit(make_batch(1), appending(2)) is Verdict.NEW


def test_a_commit_after_a_lost_answer_finds_what_the_try_has_done(admin, url, proxy):
    """The same attempt is in the ledger: nothing is written twice."""
    batch = make_batch(1)
    early = EarlyTry(settings(proxy.url))
    proxy.cut_after_commit(touching="events")
    early.begin(batch, appending(2))
    assert (early.verdict, early.outcome_unknown) == (None, True)
    assert early.commit(batch, appending(2)) is Verdict.LANDED
    assert ids(admin) == [1, 2]


def test_a_commit_that_cannot_ask_after_a_lost_answer_calls_the_outcome_unknown(admin, url, proxy):
    """It neither claims that the batch failed nor that it was written."""
    early = EarlyTry(settings(proxy.url, retry_timeout=1))
    proxy.cut_after_commit(touching="events")
    early.begin(make_batch(1), appending(2))
    proxy.stop()
    with pytest.raises(PgonceError, match="COMMIT_UNKNOWN"):
        early.commit(make_batch(1), appending(2))
    assert ids(admin) == [1, 2]
