"""How the lag is known: from progress events, or from a real broker, and what is stored for others."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from confluent_kafka import Producer
from support.ledger_history import KAFKA, OTHER, QUERY, hear, publish

from pgonce.offsets_store.kafka.settings import brokers
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.status.measure import Measured
from pgonce.offsets_store.status.states import MeasuredLag
from pgonce.serve import lag as module
from pgonce.serve.lag import PartitionLags, store_in_tx

KEY = QUERY, "public.orders"


class TestWithoutBrokers:
    def test_progress_events_tell_it(self, url, store):
        """By partition, in records; nothing is stored."""
        publish(url, 3, KAFKA)
        hear(url, {"0": {"t": {"0": 15, "1": 20}}}, batch_id=3)
        lag = PartitionLags(url, None)
        assert lag.partitions() == {}
        lag.refresh()
        (rows,) = lag.partitions().values()
        assert [(row.topic, row.partition, row.lag, row.lag_seconds) for row in rows] == [
            ("t", 0, 5, None),
            ("t", 1, 0, None),
        ]
        assert lag.measured() == ()

    def test_it_is_read_only_while_someone_scrapes(self, url, store):
        """A page alone does not need it."""
        publish(url, 3, KAFKA)
        hear(url, KAFKA, batch_id=3)
        lag = PartitionLags(url, None)
        lag.refresh()
        assert lag.partitions() == {}


class TestStored:
    """What was measured, for other processes."""

    @pytest.mark.parametrize("sqlstate", ["25006", "55P03"])
    def test_what_may_pass_is_tried_again(self, url, store, admin, sqlstate, monkeypatch, caplog):
        """A failover, or a lock, keeps nothing out for longer than it lasts, and is logged once."""
        told = [Measured(MeasuredLag(*KEY, 3, None, None, datetime.now(timezone.utc)), ())]
        monkeypatch.setattr(module, "measure_partitions", lambda *_: told)
        admin.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN RAISE EXCEPTION USING ERRCODE = ''{sqlstate}''; END'"
        )
        admin.execute("CREATE TRIGGER t BEFORE INSERT ON pgonce.measured_lag EXECUTE FUNCTION refuse()")
        lag = PartitionLags(url, brokers("nowhere:9092"))
        lag.refresh()
        lag.refresh()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        admin.execute("DROP TRIGGER t ON pgonce.measured_lag")
        lag.refresh()
        assert admin.execute("SELECT lag FROM pgonce.measured_lag").fetchall() == [(3,)]

    def test_clocks_that_are_ahead(self, url, store, admin):
        """A row that is dated tomorrow is replaced by the next one, and none is dated later than Postgres's time."""
        now = datetime.now(timezone.utc)
        tomorrow = now + timedelta(days=1)
        for lag, at in ((3, tomorrow), (4, now)):
            with writing(url) as connection:
                store_in_tx(connection, [MeasuredLag(*KEY, lag, None, None, at)])
            found = admin.execute("SELECT lag, measured_at <= clock_timestamp() FROM pgonce.measured_lag").fetchall()
            assert found == [(lag, True)]
            admin.execute("UPDATE pgonce.measured_lag SET measured_at = %s", [tomorrow])


@pytest.mark.kafka
class TestBrokers:
    @pytest.fixture
    def behind(self, url, store, kafka, topic):
        """A query that is three records behind."""
        name = topic(partitions=2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for _ in range(3):
            producer.produce(name, b"row", partition=1)
        assert producer.flush(30) == 0
        publish(url, 3, {"0": {name: {"0": 0, "1": 0}}})
        publish(url, 3, {"0": {"elsewhere": {"0": 0}}}, query_id=OTHER, sink_name="public.others")
        return brokers(kafka.bootstrap_servers)

    def test_they_tell_records_and_seconds(self, url, behind, admin):
        """What was measured counts here, and is stored for others; a second measurement takes its place."""
        lag = PartitionLags(url, behind)
        lag.refresh()
        lag.refresh()
        (total,) = lag.measured()
        assert (total.query_id, total.lag) == (QUERY, 3)
        none, three = lag.partitions()[KEY]
        assert (none.lag, none.lag_seconds, three.lag) == (0, 0.0, 3)
        assert 0 <= three.lag_seconds < 120
        assert [row.latest_offset for row in lag.rows_of(*KEY)] == [0, 3]
        stored = admin.execute("SELECT query_id, sink_name, lag FROM pgonce.measured_lag").fetchall()
        assert stored == [(*KEY, 3)]

    def test_a_role_that_may_not_write(self, url, behind, admin, login):
        """It has the lag for itself, and says once that it is not stored."""
        admin.execute(
            f"GRANT USAGE ON SCHEMA pgonce TO {login.user}; GRANT SELECT ON ALL TABLES IN SCHEMA pgonce TO {login.user}"
        )
        lag = PartitionLags(login.url, behind)
        lag.refresh()
        lag.refresh()
        assert [one.lag for one in lag.measured()] == [3]
        assert admin.execute("SELECT count(*) FROM pgonce.measured_lag").fetchone() == (0,)
