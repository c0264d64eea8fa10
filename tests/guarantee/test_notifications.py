"""By every way in, those who listen hear of each batch that is published, once, and of no replay."""

from __future__ import annotations

import json

import psycopg
import pytest
from support.inbox import Inbox, create_events, events
from support.query_runs import finish, rewind
from support.ways_in import ROUTED_WAYS, WAYS, Sink

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("way", [*WAYS, *ROUTED_WAYS], ids=lambda way: way.name)
def test_each_batch_is_told_once(spark, way, url, checkpoint, tmp_path):
    """Two batches, the first of which Spark runs twice, are two notifications with their rows."""
    inbox = Inbox(tmp_path / "inbox")
    inbox.add(10)
    create_events(url, "events", keyed=way.upserts)
    sink = Sink(url, "events", checkpoint, {"notify_channel": "batches"})
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN batches")
        finish(way.append(events(spark, inbox.folder), sink))
        rewind(checkpoint)
        inbox.add(20)
        finish(way.append(events(spark, inbox.folder), sink))
        told = [json.loads(notify.payload) for notify in listener.notifies(timeout=1)]
    assert [(each["batch_id"], each["rows"]) for each in told] == [(0, 10), (1, 20)]
    assert {name.rpartition(".")[2] for each in told for name in each["tables"]} == {"events"}
