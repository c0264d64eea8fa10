"""
The dashboard and the alerts of ``examples/monitoring``, in a real Prometheus that scrapes a real `pgonce serve`.

Covers: pgonce.serve.metrics.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from free_ports import free_port
from psycopg.conninfo import make_conninfo
from support.ledger_history import KAFKA, publish, replay
from support.patience import PATIENCE_SECONDS
from support.prometheus import MONITORING, Prometheus, program, wait_for
from support.query_runs import assert_refused, finish, rewind
from support.served import served

from pgonce import watch
from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.status.states import STATES

DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
ALERTS = re.findall(r"^  - alert: (\w+)$", (MONITORING / "alerts.yml").read_text(), re.MULTILINE)
# What Grafana puts there if the interval of its graph is short.
RATE_INTERVAL = "30s"


class TestPromtool:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["check", "config", "prometheus.yml"],
            ["check", "rules", "--lint=all", "--lint-fatal", "alerts.yml"],
            ["test", "rules", "alerts_test.yml"],
        ],
        ids=lambda arguments: arguments[1],
    )
    def test_it_finds_nothing_wrong(self, arguments):
        """The configuration, the rules, and when they fire."""
        done = subprocess.run(
            [program("promtool"), *arguments], cwd=MONITORING, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def test_each_alert_is_seen_to_fire_and_not_to(self):
        """The rules' own tests have both for each of them."""
        text = (MONITORING / "alerts_test.yml").read_text()
        assert len(ALERTS) == len(set(ALERTS)) > 10
        rests = r"^  - \{alertname: (\w+), eval_time: \w+, exp_alerts: \[\]\}$"
        fires = r"^  - alertname: (\w+)\n    eval_time: \w+\n    exp_alerts:\n    - exp_labels"
        for one in (rests, fires):
            assert set(re.findall(one, text, re.MULTILINE)) == {*ALERTS}


class TestDashboard:
    def test_it_stands_on_its_variables(self):
        """Any Prometheus, any pgonce serve, any query; each panel has a place of its own and says what it is."""
        assert set(VARIABLES) == {"datasource", "instance", "query"}
        source = {"type": "prometheus", "uid": "${datasource}"}
        assert all(one["datasource"] == source for panel in PANELS for one in (panel, *panel["targets"]))
        assert all(panel["description"].endswith(".") for panel in PANELS)
        assert len({panel["id"] for panel in PANELS}) == len(PANELS)
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in PANELS)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) == 23

    def test_colours_are_of_what_is_there(self):
        """Each state has its colour in graph and table, and what is formatted is a column."""
        graph = next(panel for panel in PANELS if panel["title"] == "Queries by state")
        assert [one["matcher"]["options"] for one in graph["fieldConfig"]["overrides"]] == list(STATES)
        table = next(panel for panel in PANELS if panel["type"] == "table")
        renamed = table["transformations"][1]["options"]["renameByName"]
        formatted = {one["matcher"]["options"]: one["properties"] for one in table["fieldConfig"]["overrides"]}
        assert formatted.keys() <= set(renamed.values())
        assert list(formatted["State"][0]["value"][0]["options"]) == list(STATES)


def expressions(instance: str, queries: str) -> Iterator[tuple[str, str, set[str]]]:
    """Each target's panel, its expression with the variables filled in, and the labels that its legend names."""
    for panel in PANELS:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in (("instance", instance), ("query", queries), ("__rate_interval", RATE_INTERVAL)):
                text = text.replace(f"${name}", value)
            assert "$" not in text
            yield panel["title"], text, set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))


@contextmanager
def serving(url: str, bootstrap_servers: str) -> Iterator[str]:
    """A `pgonce serve` of its own process, and where it listens."""
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "pgonce", "serve", "--listen", place, "--every", "0.5"]
    process = subprocess.Popen(
        [*command, "--bootstrap-servers", bootstrap_servers],
        env={**os.environ, "PGONCE_URL": url},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield place
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.spark
@pytest.mark.kafka
def test_each_panel_shows_a_real_stream(spark, kafka, messages, url, admin, tmp_path):
    """
    No panel is empty: a query over Kafka publishes, puts rows aside, and skips a batch; another one is refused.

    What Prometheus counts is what the tables have.
    """
    admin.execute("CREATE TABLE orders (id bigint PRIMARY KEY, text text)")
    admin.execute("CREATE TABLE refused (id bigint CHECK (id < 0), text text)")

    def stream(table: str, **options: str) -> Any:
        frame = messages.frame(spark, "earliest").selectExpr("nullif(id, 1001) AS id", "text")
        options |= {"url": url, "table": table, "checkpointLocation": str(tmp_path / table)}
        return frame.writeStream.format("pgonce").options(**options).queryName(table)

    orders, refused = stream("orders", deadLetters="true"), stream("refused")
    listener = watch(spark, url)
    try:
        finish(orders)
        assert_refused(refused, "CHECK_VIOLATION")
        before = count(admin, "orders")
        rewind(str(tmp_path / "orders"))
        # What pgonce serve finds waiting when it asks the broker for the first time.
        messages.send(11)
        with ExitStack() as stack:
            place = stack.enter_context(serving(url, kafka.bootstrap_servers))
            prometheus = stack.enter_context(Prometheus(tmp_path / "prometheus", [place]))
            # Until the broker was asked, it is what the listener heard.
            wait_for(lambda: prometheus.ask('pgonce_lag_records{query="orders"} == 11'))
            # Scraped with 0 before they count.
            wait_for(lambda: prometheus.ask('pgonce_failures_total{code="CHECK_VIOLATION"} == 0'))
            query = orders.trigger(processingTime="1 second").start()
            stack.callback(query.stop)
            assert_refused(refused, "CHECK_VIOLATION")

            def empty() -> list[tuple[str, str]]:
                messages.send(3)
                time.sleep(1)
                assert query.isActive, query.exception()
                asked = expressions(place, "orders|refused")
                return [
                    (title, text)
                    for title, text, labels in asked
                    if not (found := prometheus.ask(text)) or any(labels - one.labels.keys() for one in found)
                ]

            until = time.monotonic() + PATIENCE_SECONDS
            while missing := empty():
                assert time.monotonic() < until, missing
            query.processAllAvailable()
            query.stop()
            published = count(admin, "orders") - before
            assert published > 11
            wait_for(lambda: prometheus.ask(f'pgonce_rows_total{{query="orders"}} == {published}'), 60)
            wait_for(lambda: prometheus.ask('pgonce_state{query="refused", state="refused"} == 1'), 60)
            assert [one.value for one in prometheus.ask('pgonce_replays_total{query="orders"}')] == [1]
            assert [one.value for one in prometheus.ask('pgonce_dead_letters{query="orders"}')] == [1]
            assert prometheus.ask('pgonce_failures_total{query="refused", code="CHECK_VIOLATION"}')[0].value >= 1
            for name, choices in (("instance", [place]), ("query", ["orders", "refused"])):
                asked = VARIABLES[name]["query"]["query"].replace("$instance", place)
                selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", asked).groups()
                assert prometheus.values_of(label, selector) == choices
    finally:
        listener.close()


def count(admin: psycopg.Connection, table: str) -> int:
    """The rows of a table."""
    return admin.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()[0]


def run_of(name: str) -> str:
    """The run of a query in the made-up ledger."""
    return f"{name:0<8}-aaaa-4aaa-8aaa-aaaaaaaaaaaa"


# What makes each state of the made-up ledger.
_MADE_UP = """
INSERT INTO pgonce.failures (query_id, sink_name, run_id, code, message, seen_by)
SELECT query_id, sink_name, run_id, 'GAP', '', 'commit' FROM pgonce.writers WHERE query_name = 'refused';
INSERT INTO pgonce.heartbeats (query_id, run_id, listener, started_at, heard_at)
SELECT query_id, run_id, 'a driver', now() - interval '3 hours', now() - interval '1 hour'
FROM pgonce.writers WHERE query_name = 'gone';
INSERT INTO pgonce.measured_lag (query_id, sink_name, lag, lag_seconds, retention_used_percent)
SELECT query_id, sink_name, 7, CASE query_name WHEN 'lagging' THEN 700 ELSE 30 END,
       CASE query_name WHEN 'expiring' THEN 90 END
FROM pgonce.writers WHERE query_name IN ('stuck', 'expiring', 'lagging');
INSERT INTO pgonce.dead_letters (query_id, sink_name, batch_id, target, row_data, code, message, destination)
SELECT query_id, sink_name, last_batch_id, sink_name, '{}', '23502', '', '{}'
FROM pgonce.writers WHERE query_name = 'restarts';
UPDATE pgonce.batches SET committed_at = committed_at - interval '2 hours' WHERE writer_id IN (
    SELECT writer_id FROM pgonce.writers WHERE query_name IN ('gone', 'stuck', 'quiet'));
UPDATE pgonce.writers SET updated_at = updated_at - interval '2 hours', created_at = created_at - interval '3 hours'
WHERE query_name IN ('gone', 'stuck', 'quiet')
"""


@pytest.fixture
def troubled(url, store, admin):
    """A ledger that has all that the alerts tell of; a session waits, too, as long as the test lasts."""
    for name in ("refused", "gone", "stuck", "expiring", "waiting", "lagging", "quiet", "restarts"):
        publish(url, 3, KAFKA, query_id=f"id-of-{name}", query_name=name, sink_name=name, run_id=run_of(name))
    admin.execute(_MADE_UP.encode())
    admin.execute("CREATE TABLE wanted ()")
    with (
        psycopg.connect(url) as holder,
        psycopg.connect(url, application_name=application_name(run_of("waiting"))) as waiter,
    ):
        holder.execute("LOCK TABLE wanted")
        thread = threading.Thread(target=waiter.execute, args=("LOCK TABLE wanted",))
        thread.start()
        yield url
        holder.rollback()
        thread.join()


def test_each_alert_finds_what_it_tells_of(troubled, admin, pgonce, tmp_path):
    """In a made-up ledger, since no stream expires within a test; each says what to type, and none of its own fails."""
    with ExitStack() as stack:
        sites = [
            stack.enter_context(served(place)) for place in (troubled, make_conninfo(troubled, dbname="not_there"))
        ]
        places = [f"127.0.0.1:{port}" for port in (sites[0].port, sites[1].port, free_port())]
        prometheus = stack.enter_context(Prometheus(tmp_path / "prometheus", places))
        wait_for(lambda: prometheus.ask("pgonce_replays_total == 0"), 60)
        for number in range(4, 11):
            identity = {"query_id": "id-of-restarts", "query_name": "restarts", "sink_name": "restarts"}
            replay(troubled, publish(troubled, number, KAFKA, run_id=run_of("restarts"), **identity))
        admin.execute("UPDATE pgonce.failures SET attempts = attempts + 9, last_at = clock_timestamp()")

        def found() -> dict[str, Any] | None:
            rules = prometheus.rules()
            return rules if all(rule["alerts"] for rule in rules.values()) else None

        until = time.monotonic() + 60
        while (rules := found()) is None:
            assert time.monotonic() < until, [name for name, rule in prometheus.rules().items() if not rule["alerts"]]
            time.sleep(0.5)
    assert set(rules) == {*ALERTS}
    assert {rule["health"] for rule in rules.values()} == {"ok"}
    about = {name: {alert["labels"].get("query") for alert in rule["alerts"]} for name, rule in rules.items()}
    assert about == {
        "PgonceServeDown": {None},
        "PgonceLedgerUnreadable": {None},
        "PgonceQueryRefused": {"refused"},
        "PgonceQueryGone": {"gone"},
        "PgonceQueryStuck": {"stuck"},
        "PgonceQueryExpiring": {"expiring"},
        "PgonceQueryWaiting": {"waiting"},
        "PgonceQueryBehind": {"lagging"},
        "PgonceQueryLagging": {"lagging"},
        "PgonceNoBatch": {"quiet"},
        "PgonceDeadLetters": {"restarts"},
        "PgonceQueryFails": {"refused"},
        "PgonceQueryRestarts": {"restarts"},
    }
    for rule in rules.values():
        for alert in rule["alerts"]:
            assert "no value" not in str(alert["annotations"])
            # What to type is there, and answers; with health the answer is that something is critical.
            typed = alert["annotations"]["description"].rpartition(": ")[2].split()
            if typed[0] == "curl":
                assert typed[1:] == [f"http://{places[1]}/healthz"]
                continue
            said = pgonce(*typed[1:])
            assert (typed[0], said.exit_code) == ("pgonce", 10 if typed[1:] == ["health"] else 0), said.output
