"""All that the ledger has of one query and sink."""

from __future__ import annotations

from support.dead_letters import put_aside
from support.ledger_history import KAFKA, QUERY, fail, hear, publish, replay

from pgonce.offsets_store.status.details import read_details


def known(url, query_id=QUERY, sink_name="public.orders", **others):
    """What is known of this query."""
    return read_details(url, query_id, sink_name, **others)


def test_what_the_store_gives_is_the_same(url, store, admin):
    """All has the same form, whether it is read alone or with all the rest; the newest first, as many as asked for."""
    for batch_id in (2, 3):
        batch = publish(url, batch_id, KAFKA, counts={"written": 5})
    replay(url, batch)
    hear(url, {"0": {"t": {"0": 15, "1": 20}}})
    fail(url, query_name="orders")
    put_aside(admin, {"id": 1.10})
    found = known(url, with_rows=True)
    assert (found.writer, found.batches) == (store.latest("orders"), store.history("orders"))
    assert known(url, newest=1).batches == store.history("orders", limit=1)
    assert [(found.writer, found.partitions)] == store.status_of("orders")
    assert found.failures == store.failures()
    assert found.letters == store.dead_letters("orders")
    assert found.letter_codes == {"22001": 1}


def test_what_tasks_have_stored_since_the_last_record_counts(url, store, admin):
    """In real time, tasks go on between two batches; a page shows where they are, as the store does."""
    publish(url, 3, KAFKA)
    admin.execute(
        "INSERT INTO pgonce.positions (writer_id, topic, partition, next_offset, run_id) "
        "SELECT writer_id, 't', 0, 12, run_id FROM pgonce.writers"
    )
    assert known(url).writer == store.latest("orders")
    assert [at.end_offset for at in known(url).partitions] == [12, 20]


def test_a_source_that_is_not_kafka(url):
    """Its own offset is shown, with the newest one that was heard of; nothing is subtracted."""
    publish(url, 0, {"0": {"logOffset": 3}})
    hear(url, {"0": {"logOffset": 4}})
    (at,) = known(url).partitions
    assert (at.topic, at.end_offset, at.latest_offset, at.lag) == (None, {"logOffset": 3}, {"logOffset": 4}, None)


def test_failures_and_dead_letters(url, admin):
    """Those of this sink, and failures of the whole query; the row of a dead letter is not read."""
    publish(url, 0, KAFKA)
    publish(url, 0, KAFKA, sink_name="public.totals")
    fail(url)
    fail(url, sink_name=None)
    for batch_id in (1, 2, 3):
        put_aside(admin, {"id": 1}, batch_id=batch_id)
    found = known(url)
    assert [one.code for one in found.failures] == ["NOT_NULL_VIOLATION"] * 2
    assert [one.batch_id for one in found.letters] == [3, 2, 1]
    assert [one.code for one in known(url, sink_name="public.totals").failures] == ["NOT_NULL_VIOLATION"]
    assert known(url, sink_name="public.totals").letters == []


def test_a_query_that_the_ledger_does_not_know(url, store):
    """Nothing is known of it; one that failed before it published anything has its failures only."""
    assert known(url, "no such query") == known(url, "no such query", None)
    assert (known(url, "no such query").writer, known(url, "no such query").batches) == (None, [])
    fail(url, "NO_KEYS", query_id="new", sink_name=None)
    assert [one.code for one in known(url, "new", None).failures] == ["NO_KEYS"]
