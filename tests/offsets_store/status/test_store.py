"""
Stored offsets, as a person or a program asks for them.

Covers: offsets_store.ledger.session, offsets_store.status.read_stored, offsets_store.status.stored.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from support.ledger_history import KAFKA, QUERY, RUN, hear, publish, replay

from pgonce.offsets_store.errors import LedgerError
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.tables import writers
from pgonce.offsets_store.offsets import parse_offset, same_json
from pgonce.offsets_store.postgres.connect import engine_for


class TestQueries:
    def test_one_entry_a_writer(self, url, store):
        """Each sink of a query is an entry of its own, with all that the ledger knows of it."""
        first = publish(url, 0, KAFKA)
        publish(url, 0, {"0": {"logOffset": 0}}, sink_name="public.totals", guarantee="ids")
        replay(url, first)
        orders, totals = store.queries()
        assert (orders.query_id, orders.query_name, orders.sink_name) == (QUERY, "orders", "public.orders")
        assert (orders.checkpoint_location, orders.run_id, orders.batch_id) == ("/checkpoints/orders", RUN, 0)
        assert (orders.end_offsets, orders.guarantee, orders.replays) == (KAFKA, "offsets", 1)
        assert (totals.sink_name, totals.guarantee, totals.replays) == ("public.totals", "ids", 0)
        assert orders.updated_at.tzinfo is not None

    def test_disagreements_of_the_listener_are_counted(self, url, store):
        """What the listener found to differ shows in the entry."""
        publish(url, 0, KAFKA)
        hear(url, KAFKA, batch_id=0)
        hear(url, KAFKA, batch_id=1, disagreement="differs")
        assert store.latest("orders").disagreements == 1


class TestMalformed:
    @pytest.mark.parametrize(
        ("where", "ask"),
        [
            ("writers SET end_offsets", "status"),
            ("writers SET targets", "queries"),
            ("batches SET positions", "latest"),
            ("batches SET counts", "history"),
            ("batches SET tables", "history"),
            ("progress SET latest_offsets", "status_of"),
        ],
    )
    def test_json_of_another_shape(self, url, store, admin, where, ask):
        """What something else has written there is refused; the error names the query."""
        publish(url, 0, KAFKA)
        hear(url, KAFKA, batch_id=0)
        admin.execute(f"UPDATE pgonce.{where} = '[3]'".encode())
        with pytest.raises(LedgerError, match=QUERY) as refused:
            getattr(store, ask)(*([] if ask in ("status", "queries") else ["orders"]))
        assert refused.value.code == "LEDGER_MALFORMED"


class TestHistory:
    def test_newest_first_and_limited(self, url, store):
        """The newest batches come first, with rows, offsets and replays."""
        for batch_id in range(5):
            batch = publish(
                url,
                batch_id,
                {"0": {"logOffset": batch_id}},
                start={"0": {"logOffset": batch_id - 1}} if batch_id else None,
                rows=batch_id,
            )
        replay(url, batch)
        found = store.history("orders", limit=2)
        assert [(b.batch_id, b.rows, b.replays) for b in found] == [(4, 4, 1), (3, 3, 0)]
        assert found[0].start_offsets == {"0": {"logOffset": 3}}
        assert found[0].end_offsets == {"0": {"logOffset": 4}}
        assert found[0].run_id == RUN

    def test_all_sinks_or_one(self, url, store):
        """Without a sink the batches of all are there."""
        publish(url, 0, KAFKA)
        publish(url, 0, KAFKA, sink_name="audit")
        assert {b.sink_name for b in store.history("orders")} == {"audit", "public.orders"}
        assert {b.sink_name for b in store.history("orders", sink="audit")} == {"audit"}


def test_a_transaction_that_reads_the_ledger_can_write_nothing(url, store):
    """What reads the ledger runs in a transaction that the server lets write nothing."""
    with pytest.raises(LedgerError, match=r"\[READ_ONLY\]"), reading(url) as connection:
        connection.execute(delete(writers))


def numbers():
    """JSON texts of numbers, those that cannot be held among them."""
    awkward = ["1e5", "1E400", "-0.0", "-0", "1e-400", "0.1234567890123456789", "5e-324", "9007199254740993.0"]
    floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
    return st.one_of(st.integers().map(str), floats, st.decimals(allow_nan=False, allow_infinity=False).map(str)) | (
        st.sampled_from(awkward)
    )


def documents():
    """JSON texts of any shape, and texts that are no JSON."""
    leaves = st.one_of(numbers(), st.text().map(json.dumps), st.sampled_from(["null", "true", "false"]))

    def wrap(children):
        keys = st.text(max_size=4).map(json.dumps)
        objects = st.dictionaries(keys, children, max_size=4)
        return st.one_of(
            st.lists(children, max_size=4).map(lambda items: f"[{','.join(items)}]"),
            objects.map(lambda pairs: "{" + ",".join(f"{key}:{value}" for key, value in pairs.items()) + "}"),
        )

    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    return st.one_of(st.recursive(leaves, wrap, max_leaves=8), text)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=documents())
def test_offsets_come_back_from_jsonb_as_they_went(url, text):
    """Every offset that Spark may write is read back from the ledger as the same JSON value."""
    offsets = {"0": parse_offset(text)}
    with engine_for(url).connect() as connection:
        back = connection.execute(select(literal(offsets, JSONB(none_as_null=True)))).scalar_one()
    assert same_json(back, offsets)
