"""
The metrics, as Prometheus reads them, and what promtool says of them.

Covers: pgonce.serve.tally.
"""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.ledger_history import KAFKA, OTHER, QUERY, fail, hear, publish, replay
from support.served import Served, served

from pgonce.offsets_store.status.states import STATES

EVIL = 'a"b\\c\nd{}'
OURS = {"query_id": QUERY, "query": "orders", "sink": "public.orders"}


def metrics_of(site: Served) -> dict[str, list]:
    """The samples of a scrape, by name."""
    answer = site.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(found: dict[str, list], name: str, **labels: str) -> float | None:
    """The value of the one series with these labels; None if there is none."""
    values = [one.value for one in found.get(name, []) if labels.items() <= one.labels.items()]
    assert len(values) <= 1
    return values[0] if values else None


def scrape(site: Served) -> dict[str, list]:
    """The metrics after another look."""
    site.look()
    return metrics_of(site)


class TestCounters:
    def test_they_begin_when_the_process_begins(self, url, store):
        """What was published before is not counted; what comes is, with its rows."""
        publish(url, 3, KAFKA, rows=100)
        with served(url) as site:
            assert value(scrape(site), "pgonce_batches_total", **OURS) == 0
            publish(url, 4, KAFKA, rows=7)
            publish(url, 5, KAFKA, rows=8)
            found = scrape(site)
        assert value(found, "pgonce_batches_total", **OURS) == 2
        assert value(found, "pgonce_rows_total", **OURS) == 15

    def test_a_query_that_comes_later_is_counted_from_its_first_batch(self, url, store):
        """Its batches came after the process began."""
        with served(url) as site:
            site.look()
            publish(url, 0, KAFKA, rows=5)
            assert value(scrape(site), "pgonce_rows_total", **OURS) == 5

    def test_they_never_go_backwards(self, url, store, admin):
        """Neither a prune of the ledger, nor a restore of an older state, nor batch ids that begin again take back."""
        publish(url, 0, KAFKA)
        with served(url) as site:
            site.look()
            for batch_id in (1, 2, 3):
                publish(url, batch_id, KAFKA)
            assert value(scrape(site), "pgonce_batches_total", **OURS) == 3
            admin.execute("DELETE FROM pgonce.batches WHERE batch_id < 3")
            assert value(scrape(site), "pgonce_batches_total", **OURS) == 3
            with admin.transaction():
                admin.execute("UPDATE pgonce.batches SET batch_id = 1")
                admin.execute("UPDATE pgonce.writers SET last_batch_id = 1")
            assert value(scrape(site), "pgonce_batches_total", **OURS) == 3
            publish(url, 2, KAFKA)
            assert value(scrape(site), "pgonce_batches_total", **OURS) == 4
            with admin.transaction():
                admin.execute("UPDATE pgonce.batches SET generation = 1, batch_id = 0 WHERE batch_id = 2")
                admin.execute("UPDATE pgonce.writers SET generation = 1, last_batch_id = 0")
            assert value(scrape(site), "pgonce_batches_total", **OURS) == 5

    def test_counters_begin_at_zero_and_count_what_is_seen_since(self, url, store, admin):
        """Those of before are not counted; a failure that is seen again is, by its code."""
        replay(url, publish(url, 3, KAFKA))
        fail(url, "GAP", attempts=5)
        with served(url) as site:
            found = scrape(site)
            assert value(found, "pgonce_replays_total", **OURS) == 0
            assert value(found, "pgonce_failures_total", **OURS, code="GAP") == 0
            replay(url, publish(url, 4, KAFKA))
            admin.execute("UPDATE pgonce.failures SET attempts = 7, last_at = clock_timestamp()")
            for number in range(30):
                fail(url, f"{EVIL}{number}" if number % 2 else f"CODE_{number}" * (1 + number), attempts=5)
            found = scrape(site)
        assert value(found, "pgonce_replays_total", **OURS) == 1
        assert value(found, "pgonce_failures_total", **OURS, code="GAP") == 2
        codes = [one.labels["code"] for one in found["pgonce_failures_total"]]
        # A query that fails in ever new ways makes no more series than these.
        assert len(codes) <= 21
        assert "other" in codes
        assert not any(EVIL in code for code in codes)
        assert sum(one.value for one in found["pgonce_failures_total"]) == 2 + 5 * 30

    def test_how_long_commits_took(self, url, store, admin):
        """A histogram of what the ledger has, from the process's start on, by query and sink; no listener is needed."""
        publish(url, 3, KAFKA)
        with served(url) as site:
            assert "pgonce_commit_seconds_count" not in scrape(site)
            for batch_id, seconds in ((4, "'0.02 s'"), (5, "'0.7 s'")):
                began = f"clock_timestamp() - CAST({seconds} AS interval)"
                admin.execute(f"ALTER TABLE pgonce.batches ALTER COLUMN begun_at SET DEFAULT {began}".encode())
                publish(url, batch_id, KAFKA)
            found = scrape(site)
            buckets = {one.labels["le"]: one.value for one in found["pgonce_commit_seconds_bucket"]}
            assert [buckets[bound] for bound in ("0.01", "0.025", "0.5", "1.0", "+Inf")] == [0, 1, 1, 2, 2]
            assert value(found, "pgonce_commit_seconds_sum", **OURS) == pytest.approx(0.72, abs=0.01)
            admin.execute("DELETE FROM pgonce.batches WHERE batch_id < 5")
            assert value(scrape(site), "pgonce_commit_seconds_count", **OURS) == 2


class TestGauges:
    def test_one_state_is_1(self, url, store):
        """Each state has its series, and the query is in one of them."""
        publish(url, 3, KAFKA)
        with served(url) as site:
            found = scrape(site)
        states = {one.labels["state"]: one.value for one in found["pgonce_state"]}
        assert states == {**dict.fromkeys(STATES, 0.0), "running": 1.0}
        assert value(found, "pgonce_last_batch_timestamp_seconds", **OURS) > 1.7e9
        assert value(found, "pgonce_dead_letters", **OURS) == 0

    def test_lag_under_the_names_that_dashboards_know(self, url, store):
        """By partition, in place of the group the query; of two sinks, the one that is further behind counts."""
        publish(url, 3, KAFKA)
        publish(url, 3, {"0": {"t": {"0": 4, "1": 20}}}, sink_name="public.copies")
        hear(url, {"0": {"t": {"0": 15, "1": 21}}}, batch_id=3)
        with served(url) as site:
            metrics_of(site)
            site.lag.refresh()
            found = scrape(site)
        lag = {
            (one.labels["topic"], one.labels["partition"]): one.value for one in found["kafka_consumergroup_group_lag"]
        }
        assert lag == {("t", "0"): 11, ("t", "1"): 1}
        assert {one.labels["group"] for one in found["kafka_consumergroup_group_lag"]} == {"orders"}
        assert value(found, "pgonce_lag_records", **OURS) == 6

    def test_what_is_not_known_now_is_not_shown(self, url, store, admin):
        """While the ledger cannot be read, pgonce_up is 0, gauges are gone, and counters stay."""
        publish(url, 3, KAFKA)
        with served(url) as site:
            assert value(scrape(site), "pgonce_up") == 1
            admin.execute("ALTER SCHEMA pgonce RENAME TO away")
            found = scrape(site)
            assert value(found, "pgonce_up") == 0
            assert "pgonce_state" not in found
            assert value(found, "pgonce_batches_total", **OURS) == 0
            admin.execute("ALTER SCHEMA away RENAME TO pgonce")
            assert "pgonce_state" in scrape(site)

    def test_a_query_that_is_gone_vanishes(self, url, store, admin):
        """One of which nothing is known leaves after a day; one that fails stays."""
        publish(url, 3, KAFKA)
        publish(url, 3, KAFKA, query_id=OTHER, query_name="failing", sink_name="public.others")
        fail(url, "GAP", query_id=OTHER, sink_name="public.others")
        for hours, names in ((23, {"failing", "orders"}), (25, {"failing"})):
            admin.execute(f"UPDATE pgonce.batches SET committed_at = now() - interval '{hours} hours'".encode())
            admin.execute(f"UPDATE pgonce.writers SET updated_at = now() - interval '{hours} hours'".encode())
            with served(url) as site:
                assert {one.labels["query"] for one in scrape(site)["pgonce_state"]} == names
