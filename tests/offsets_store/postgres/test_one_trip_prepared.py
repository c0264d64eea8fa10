"""Where statements of the commit are kept prepared, where not, and what becomes of a batch whose session lacks them."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from support.batches import make_batch
from support.committed_rows import appending, ids, settings

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.postgres.connect import checked_out, driver_connection
from pgonce.offsets_store.postgres.one_trip import keep_prepared
from pgonce.offsets_store.verdict.decide import Verdict

IN_THE_SESSION = "SELECT statement FROM pg_prepared_statements"
GONE = "DO $$ BEGIN DEALLOCATE ALL; END $$"


pytestmark = pytest.mark.usefixtures("events")


def kept(url):
    """What the session of this process's pool has prepared."""
    with checked_out(url) as connection:
        return [statement for (statement,) in driver_connection(connection).execute(IN_THE_SESSION)]


def test_a_session_keeps_what_is_asked_of_the_ledger(admin, url):
    """From its second commit on, once each, however many batches follow; and nothing of the target."""
    commit_batch(settings(url), make_batch(0), appending(0))
    for number in range(1, 4):
        commit_batch(settings(url), make_batch(number), appending(number))
        found = kept(url)
        assert any("FOR UPDATE OF writers" in statement for statement in found)
        assert any(statement.startswith("INSERT INTO pgonce.batches") for statement in found)
        assert not any("events (" in statement for statement in found)
    before = len(found)
    for number in range(4, 40):
        commit_batch(settings(url), make_batch(number), appending(number))
    assert len(kept(url)) <= before + 1
    assert ids(admin) == list(range(40))


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_behind_a_pooler_nothing_is_prepared(mode, admin, pgbouncer, database):
    """The process id that libpq knows is the pooler's own."""
    url = pgbouncer(mode).url(database)
    for number in range(3):
        commit_batch(settings(url), make_batch(number), appending(number))
    assert kept(url) == []
    assert ids(admin) == [0, 1, 2]


def test_a_pooler_that_seemed_to_be_none_costs_one_try_at_most(admin, pgbouncer, database):
    """A session in which something is thought to be prepared turns out to be another one."""
    url = pgbouncer().url(database)
    commit_batch(settings(url), make_batch(0), appending(0))
    with checked_out(url) as connection:
        driver = driver_connection(connection)
        keep_prepared(driver, url, driver.info.backend_pid)
    for number in range(1, 4):
        assert commit_batch(settings(url), make_batch(number), appending(number)) is Verdict.NEW
    assert ids(admin) == [0, 1, 2, 3]


@pytest.mark.parametrize("when", ["between batches", "in a batch"])
def test_what_sql_of_the_user_has_deallocated_costs_one_try(when, admin, url, caplog):
    """A function of the database may do that unseen; from then on nothing is prepared by this url."""
    url = f"{url}&application_name=another" if "?" in url else f"{url}?application_name=another"
    for number in range(2):
        commit_batch(settings(url), make_batch(number), appending(number))
    work = appending(2)
    if when == "between batches":
        with checked_out(url) as connection:
            driver_connection(connection).execute(GONE)
            driver_connection(connection).commit()
    else:

        def publish(connection, batch, stored):
            driver_connection(connection).execute(GONE)
            return appending(2).publish(connection, batch, stored)

        work = replace(work, publish=publish)
    with caplog.at_level(logging.WARNING, logger="pgonce"):
        assert commit_batch(settings(url), make_batch(2), work) is Verdict.NEW
        assert commit_batch(settings(url), make_batch(3), appending(3)) is Verdict.NEW
    assert caplog.text.count("trying again") == 1
    assert kept(url) == []
    assert ids(admin) == [0, 1, 2, 3]
