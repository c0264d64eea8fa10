"""
The option ``replaces`` names a query by its id, and by nothing that is only like it.

Covers: offsets_store.ledger.writers.
"""

from __future__ import annotations

import pytest
from support.committed_rows import commit_rows, ids

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies

pytestmark = pytest.mark.usefixtures("events")


def commit(url, query, *of, start=0, replaces=None, **facts):
    """Commit batch 0 of a query, which reads ten records from ``start`` on."""
    reads = {"start": {"0": {"t": {"0": start}}}, "end": {"0": {"t": {"0": start + 10}}}}
    return commit_rows(url, query, 0, *of, remedies=Remedies(replaces=replaces), **reads, **facts)


def refused(code, *arguments, **how):
    """What the commit says."""
    with pytest.raises(PgonceError, match=rf"\[{code}\]") as error:
        commit(*arguments, **how)
    return str(error.value)


def test_it_is_the_whole_id(admin, url):
    """A name, the beginning of an id, a part from the middle, a pattern: refused, with the id that fits."""
    commit(url, "6f9d-old", 1, query_name="orders")
    for named in ("orders", "6f9d", "9d-old", "%", "6f9_"):
        said = refused("FOREIGN", url, "new", 5, start=10, replaces=named)
        assert ("no query of this id" in said, "6f9d-old" in said) == (True, True)
    assert commit(url, "new", 5, start=10, replaces="6f9d-old") is Verdict.NEW
    assert ids(admin) == [1, 5]
    refused("FENCED", url, "6f9d-old", 9)


def test_an_id_that_was_left_in_place_replaces_nothing_twice(admin, url):
    """The error names the successor."""
    commit(url, "old", 1)
    commit(url, "new", 5, start=10, replaces="old")
    assert "replaces=new" in refused("FOREIGN", url, "newer", 7, start=20, replaces="old")
    assert ids(admin) == [1, 5]
