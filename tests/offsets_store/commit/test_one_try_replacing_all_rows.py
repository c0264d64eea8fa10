"""
Queries of which each batch replaces all rows of a table: the rows of others would go with them.

Covers: offsets_store.ledger.writers, offsets_store.verdict.facts.
"""

from __future__ import annotations

import pytest
from support.batches import make_planned_batch
from support.committed_rows import appending, ids, rows, settings
from support.with_rooms import work_into

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination

pytestmark = pytest.mark.usefixtures("events", "ledger")

# Reads something else than other batches do.
ELSEWHERE = {"start": {"0": {"other": {"0": 0}}}, "end": {"0": {"other": {"0": 5}}}}
CONTINUED = {"start": {"0": {"t": {"0": 10}}}, "end": {"0": {"t": {"0": 20}}}}


def batch(query, batch_id=0, **more):
    """A batch of a query."""
    return make_planned_batch(batch_id, f"run of {query}", query_id=query, **more)


def replacing(*of):
    """The work of a query in mode complete."""
    return work_into(None, destination("events", "complete"), rows(*of))


def refused(url, batch, work):
    """The code of the error."""
    with pytest.raises(PgonceError, match="replaces all rows of the table") as error:
        commit_batch(settings(url), batch, work)
    return error.value.code


def test_where_another_query_appends(url, admin):
    """It is refused before it is recorded, unless its user says otherwise."""
    commit_batch(settings(url), batch("appends"), appending(1))
    assert refused(url, batch("replaces", **ELSEWHERE), replacing(2)) == "FOREIGN"
    assert ids(admin) == [1]
    says = settings(url, remedies=Remedies(independent=True))
    assert commit_batch(says, batch("replaces", **ELSEWHERE), replacing(2)) is Verdict.NEW
    assert ids(admin) == [2]


def test_where_another_query_replaces_all(url, admin):
    """A query that appends would lose its rows at the other's next batch."""
    commit_batch(settings(url), batch("replaces"), replacing(1))
    appends = work_into(None, destination("events", "append"), rows(2))
    assert refused(url, batch("appends", **ELSEWHERE), appends) == "FOREIGN"
    assert ids(admin) == [1]
    assert commit_batch(settings(url), batch("replaces", 1), replacing(3)) is Verdict.NEW
    assert ids(admin) == [3]


def test_tables_that_only_share_a_sinks_name(url, admin):
    """A router's own name is that of its column, which other routers may have."""
    admin.execute("CREATE TABLE others (id bigint, name text)")
    commit_batch(settings(url), batch("appends"), work_into("route:kind", destination("others"), rows(1)))
    replaces = work_into("route:kind", destination("events", "complete"), rows(2))
    assert commit_batch(settings(url), batch("replaces", **ELSEWHERE), replaces) is Verdict.NEW


def test_a_doubt_does_not_hide_it(url, admin):
    """That nothing proves that they read something else is the lesser reason: the error names the greater one."""
    unknown = {"start": {"0": 0}, "end": {"0": 1}}
    commit_batch(settings(url), batch("replaces", **unknown), replacing(1))
    appends = work_into(None, destination("events", "append"), rows(2))
    assert refused(url, batch("appends", **unknown), appends) == "FOREIGN"
    assert ids(admin) == [1]


def test_a_query_that_takes_the_place_of_another(url, admin):
    """Others have worked beside that one, and go on."""
    commit_batch(settings(url), batch("replaces"), replacing(1))
    says = settings(url, remedies=Remedies(independent=True))
    commit_batch(says, batch("appends", **ELSEWHERE), appending(2))
    instead = settings(url, remedies=Remedies(replaces="replaces"))
    assert commit_batch(instead, batch("new", **CONTINUED), replacing(3)) is Verdict.NEW


def test_a_query_that_takes_the_place_of_one_that_only_appended(url, admin):
    """The rows of a third query, which also appends, would go with those of the replaced one."""
    commit_batch(settings(url), batch("appends"), appending(1))
    commit_batch(settings(url), batch("third", **ELSEWHERE), appending(2))
    with pytest.raises(PgonceError, match="FOREIGN.*query third"):
        commit_batch(settings(url, remedies=Remedies(replaces="appends")), batch("new", **CONTINUED), replacing(3))
    assert ids(admin) == [1, 2]


def test_a_partition_of_the_table(url, admin):
    """Its rows are rows of the whole table."""
    admin.execute(
        "CREATE TABLE whole (id bigint, name text) PARTITION BY RANGE (id); "
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)"
    )
    replaces = work_into(None, destination("whole", "complete"), rows(1))
    commit_batch(settings(url), batch("replaces"), replaces)
    appends = work_into(None, destination("part"), rows(2))
    assert refused(url, batch("appends", **ELSEWHERE), appends) == "FOREIGN"
