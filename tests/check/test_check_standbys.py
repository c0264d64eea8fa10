"""The preflight says which synchronous standbys COMMIT waits for."""

from __future__ import annotations

import pytest
from support.fixtures.postgres import url_with
from support.two_servers import two_servers

from pgonce.check.answers import Holds
from pgonce.check.check import check_server


@pytest.fixture(scope="module")
def servers():
    """A primary and its standby; the standby is called two."""
    with two_servers() as both:
        yield both


@pytest.fixture
def primary(servers):
    """The primary, whose standby is asynchronous again after the test."""
    one, _ = servers
    yield one
    one.configure(synchronous_standby_names="")


def of_standbys(url):
    """What the preflight says of the standbys."""
    return {one.name: one for one in check_server(url)}["standbys"]


def test_without_names_a_failover_may_lose_batches(primary):
    """A standby that is connected does not help, if COMMIT does not wait for it."""
    found = of_standbys(primary.uri())
    assert (found.holds, "the last batches may be missing" in found.says) == (Holds.WEAKER, True)


@pytest.mark.parametrize("names", ["two", "FIRST 2 (two, three)"])
def test_the_names_that_commit_waits_for(names, primary):
    """They are told, and what happens while too few are there; the check itself waits for none of them."""
    primary.configure(synchronous_standby_names=names)
    found = of_standbys(primary.uri())
    assert (found.holds, repr(names) in found.says) == (Holds.YES, True)
    assert "pg_stat_replication" in found.remedy


@pytest.mark.parametrize("level", ["off", "local"])
def test_a_commit_that_does_not_wait(level, primary):
    """The role's own setting decides whether COMMIT waits."""
    primary.configure(synchronous_standby_names="two")
    found = of_standbys(url_with(primary.uri(), options=f"-csynchronous_commit={level}"))
    assert (found.holds, "COMMIT does not wait" in found.says) == (Holds.WEAKER, True)
