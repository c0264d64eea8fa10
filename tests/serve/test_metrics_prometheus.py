"""The alert rules and the dashboard of examples/monitoring, on a real Prometheus that scrapes a real `pgonce serve`."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import pytest
from free_ports import free_port
from support.fixtures.skips import unavailable
from support.ledger_history import KAFKA, OTHER, QUERY, RUN, hear, publish, replay
from support.served import PATIENCE_SECONDS, served

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
# What those panels show that are empty while all is well.
EMPTY_IF_WELL = {"Lag in seconds (measured at the brokers)"}


def program(name: str) -> str:
    """Where a program of Debian's package prometheus is."""
    found = shutil.which(name)
    if found is None:
        unavailable(f"{name} is missing: apt-get install prometheus")
    return found


def test_each_rule_fires_when_it_should():
    """Debian's promtool runs the rules' own tests, and every rule is in one."""
    done = subprocess.run(
        [program("promtool"), "test", "rules", "alerts_test.yml"],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = (MONITORING / "alerts_test.yml").read_text()
    names = [line.split()[-1] for line in (MONITORING / "alerts.yml").read_text().splitlines() if "- alert:" in line]
    assert len(names) > 10
    assert [name for name in names if name not in tests] == []


def test_the_configuration_is_prometheuss():
    """It reads the file as it stands."""
    done = subprocess.run(
        [program("promtool"), "check", "config", "prometheus.yml"],
        cwd=MONITORING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A server that scrapes every second; its answers."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **parameters: str):
        """The data of an answer."""
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list:
        """What an expression gives now."""
        return self.ask("query", query=expression)["result"]

    def until(self, expression: str) -> list:
        """The same, once there is something."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if found := self.values(expression):
                    return found
            except OSError:
                pass
            assert time.monotonic() < until, expression
            time.sleep(0.2)


@pytest.fixture
def prometheus(tmp_path):
    """Start one that scrapes a port, with our rules."""
    processes = []

    def start(scraped: int) -> Prometheus:
        text = (MONITORING / "prometheus.yml").read_text()
        text = text.replace("127.0.0.1:9847", f"127.0.0.1:{scraped}").replace("_interval: 15s", "_interval: 1s")
        text = text.replace("alerts.yml", str(MONITORING / "alerts.yml"))
        (tmp_path / "prometheus.yml").write_text(text)
        port = free_port()
        processes.append(
            subprocess.Popen(
                [
                    program("prometheus"), f"--config.file={tmp_path / 'prometheus.yml'}",
                    f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
                ],
                stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        return Prometheus(port)

    yield start
    for process in processes:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def test_every_panel_and_every_rule(url, store, admin, prometheus):
    """While batches are published, each panel's query has an answer, and what fails is pending."""
    publish(url, 0, KAFKA)
    publish(url, 0, KAFKA, query_id=OTHER, query_name="payments", sink_name="public.payments")
    hear(url, {"0": {"t": {"0": 15, "1": 25}}}, batch_id=0)
    ended = threading.Event()

    def go_on() -> None:
        for batch_id in range(1, 1000):
            batch = publish(url, batch_id, KAFKA)
            took(admin, batch_id)
            if batch_id == 5:
                replay(url, batch)
                fail(admin)
                letter(admin)
            if ended.wait(0.3):
                return

    with served(url, every=0.3) as site:
        site.look()
        stream = threading.Thread(target=go_on)
        server = prometheus(site.port)
        server.until("pgonce_up == 1")
        # What no scrape has asked for is not read.
        site.lag.refresh()
        stream.start()
        try:
            server.until("increase(pgonce_failures_total[1h]) > 0")
            server.until("increase(pgonce_replays_total[1h]) > 0")
            server.until("rate(pgonce_batch_seconds_bucket[1m]) > 0")
            answers = {panel["title"]: answer(server, panel) for panel in panels()}
            rules = server.ask("rules")["groups"][0]["rules"]
        finally:
            ended.set()
            stream.join()
    assert len(answers) > 12
    assert {title for title, found in answers.items() if not found} <= EMPTY_IF_WELL
    assert {rule["health"] for rule in rules} == {"ok"}
    assert len(rules) > 10
    states = {rule["name"]: rule["state"] for rule in rules}
    assert states["PgonceQueryRefused"] in ("pending", "firing")
    assert states["PgonceLedgerUnreadable"] == "inactive"


def panels() -> list[dict]:
    """The panels of the dashboard."""
    return json.loads((MONITORING / "dashboard.json").read_text())["panels"]


def answer(server: Prometheus, panel: dict) -> list:
    """What a panel's query gives, with Grafana's variables filled in; some minutes need a moment."""
    (target,) = panel["targets"]
    expression = target["expr"].replace("$__rate_interval", "1m").replace("$query", ".*")
    until = time.monotonic() + 10
    while not (found := server.values(expression)) and panel["title"] not in EMPTY_IF_WELL:
        if time.monotonic() > until:
            return []
        time.sleep(0.2)
    return found


def took(admin, batch_id: int) -> None:
    """A progress event of now."""
    admin.execute(
        "INSERT INTO pgonce.progress "
        "(query_id, run_id, batch_id, progress_at, num_input_rows, latest_offsets, durations_ms) "
        'VALUES (%s, %s, %s, clock_timestamp(), 1, \'{"0": {"t": {"0": 15, "1": 25}}}\', \'{"addBatch": 120}\')',
        [QUERY, RUN, batch_id],
    )


def fail(admin) -> None:
    """A batch of the other query fails."""
    admin.execute(
        "INSERT INTO pgonce.failures (query_id, query_name, sink_name, batch_id, code, message, seen_by) "
        "VALUES (%s, 'payments', 'public.payments', 1, 'GAP', 'a gap', 'commit')",
        [OTHER],
    )
    time.sleep(1.5)
    admin.execute("UPDATE pgonce.failures SET attempts = 4, last_at = clock_timestamp()")


def letter(admin) -> None:
    """A row is put aside."""
    admin.execute(
        "INSERT INTO pgonce.dead_letters (query_id, sink_name, batch_id, target, row_data, code, message, destination) "
        "VALUES (%s, 'public.orders', 5, 'public.orders', '{}', '22001', 'too long', '{}')",
        [QUERY],
    )
