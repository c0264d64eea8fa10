"""
What the option ``replaces`` names: a query by its id, the beginning of it, or its name, and never two of them.

Covers: offsets_store.ledger.writers.
"""

from __future__ import annotations

import pytest
from support.batches import make_batch
from support.committed_rows import ids, rows, settings
from support.with_rooms import work_into

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination

pytestmark = pytest.mark.usefixtures("events")


def commit(url, query, *of, start=0, replaces=None, **facts):
    """Commit batch 0 of a query, which reads ten records from ``start`` on."""
    batch = make_batch(
        0,
        f"run of {query}",
        query_id=query,
        start={"0": {"t": {"0": start}}},
        end={"0": {"t": {"0": start + 10}}},
        **facts,
    )
    work = work_into(None, destination("events"), rows(*of))
    return commit_batch(settings(url, remedies=Remedies(replaces=replaces), retry_timeout=0), batch, work)


def refused(code, *arguments, **how):
    """What the commit says."""
    with pytest.raises(PgonceError, match=rf"\[{code}\]") as error:
        commit(*arguments, **how)
    return str(error.value)


@pytest.mark.parametrize("named", ["orders", "6f9d", "6f9d-old"])
def test_a_name_or_the_beginning_of_an_id_is_enough(admin, url, named):
    """The old query is fenced, and the ledger keeps its whole id."""
    commit(url, "6f9d-old", 1, query_name="orders")
    assert commit(url, "new", 5, start=10, replaces=named) is Verdict.NEW
    assert ids(admin) == [1, 5]
    refused("FENCED", url, "6f9d-old", 9)
    assert admin.execute("SELECT replaces FROM pgonce.writers WHERE query_id = 'new'").fetchone() == ("6f9d-old",)


def test_what_is_only_like_an_id_names_nobody(admin, url):
    """Fewer than four characters, a part from the middle, a pattern: refused."""
    commit(url, "6f9d-old", 1)
    for named in ("6f9", "9d-old", "%", "6f9_"):
        assert "6f9d-old" in refused("FOREIGN", url, "new", 5, start=10, replaces=named)
    assert ids(admin) == [1]


def test_a_name_that_was_left_in_place_is_ambiguous(admin, url):
    """The newer query has the name of the one that it replaced, so the name means both: refused, and both shown."""
    commit(url, "the first", 1, query_name="orders")
    assert commit(url, "the second", 5, start=10, replaces="orders", query_name="orders") is Verdict.NEW
    said = refused("QUERY_AMBIGUOUS", url, "the third", 7, start=20, replaces="orders", query_name="orders")
    assert "the first (orders, replaced by the second)" in said
    assert "the second (orders, last batch at" in said
    assert ids(admin) == [1, 5]


def test_an_id_that_was_left_in_place_replaces_nothing_twice(admin, url):
    """The error names the successor."""
    commit(url, "old", 1)
    commit(url, "new", 5, start=10, replaces="old")
    assert "replaces=new" in refused("FOREIGN", url, "newer", 7, start=20, replaces="old")
    assert ids(admin) == [1, 5]
