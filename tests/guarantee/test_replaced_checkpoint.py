"""A new checkpoint takes a lost one's place where Kafka's offsets prove that it begins where the other ended."""

from __future__ import annotations

import json

import psycopg
import pytest
from support.audit import query_id, wrong_ledger, wrong_rows
from support.messages import Messages
from support.query_runs import assert_refused, finish
from support.ways_in import WAYS, Sink

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_new_checkpoint_takes_over(spark, kafka, topic, way, url, observer, tmp_path):
    """From the stored end it goes on, from anywhere else it is refused, and the replaced query may write no more."""
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE messages (id bigint {'PRIMARY KEY' if way.upserts else ''}, text text)")
    messages = Messages(kafka.bootstrap_servers, topic(partitions=2))
    messages.send(11)

    def write(starting_offsets, checkpoint, **settings):
        return way.append(
            messages.frame(spark, starting_offsets), Sink(url, "messages", str(tmp_path / checkpoint), settings)
        )

    finish(write("earliest", "lost"))
    lost = query_id(tmp_path / "lost")
    ends = observer.execute("SELECT end_offsets -> '0' FROM pgonce.writers WHERE query_id = %s", [lost]).fetchone()
    published = list(messages.rows)
    messages.send(21)

    assert_refused(write("earliest", "no_word"), "FOREIGN")
    assert_refused(write("earliest", "wrong_start", replaces=lost), "FOREIGN")
    assert wrong_rows(observer, "messages", published) == []
    for _ in range(2):
        finish(write(json.dumps(ends[0]), "new", replaces=lost))
        assert wrong_rows(observer, "messages", messages.rows) == []
        assert wrong_ledger(observer, str(tmp_path / "new")) == []
        messages.send(5)
    assert_refused(write("earliest", "lost"), "FENCED")
