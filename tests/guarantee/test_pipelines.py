"""Declarative pipelines: every row is in the table once, even if a run of ``spark-pipelines`` fails or is killed."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psycopg
import pytest
from maven import ROOT
from psycopg.conninfo import conninfo_to_dict
from support import pipeline_run
from support.audit import query_id, wrong_ledger
from support.fixtures.driver import Driver, wait_until
from support.gate import gate
from support.patience import PATIENCE_SECONDS
from support.query_runs import rewind

from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.recovery.forget import forget_query

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLE = ROOT / "examples" / "pipeline"
WEB, TILLS, LATER = range(1, 41), range(1001, 1031), range(2001, 2006)
# Of the Connect server that spark-pipelines starts for itself. Its client looks for it there, whatever is set.
_PORT = 15002


class Pipeline:
    """The example, with a storage, a database and orders of the test's own."""

    def __init__(self, home: Path, url: str, start_driver: Callable[..., Driver]) -> None:
        self._home, self._start_driver = home / "pipeline", start_driver
        shutil.copytree(EXAMPLE, self._home)
        self._spec = self._home / "spark-pipeline.yml"
        self._spec.write_text(self._spec.read_text().replace("file:///checkpoints", f"file://{home}/storage"))
        self._storage = home / "storage" / "orders"
        self._orders = home / "orders"
        for flow in ("web", "tills"):
            (self._orders / flow).mkdir(parents=True)
        self._files = count()
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
        parameters = conninfo_to_dict(url)
        self._env = {"ORDERS": str(self._orders)}
        self._env |= {names[name]: str(value) for name, value in parameters.items() if name in names}

    def add(self, flow: str, ids: range) -> None:
        """Put a file of orders into a flow's folder, in one piece; Spark sees that it is later than those before."""
        rows = [
            {"order_id": n, "customer": f"c{n % 3}", "amount": n + 0.25, "placed_at": "2026-03-01T12:00:00Z"}
            for n in ids
        ]
        time.sleep(0.01)  # Spark orders files by milliseconds
        unseen = self._orders / flow / ".unfinished"
        unseen.write_text("\n".join(map(json.dumps, rows)))
        unseen.rename(self._orders / flow / f"{next(self._files):04}.json")

    def change(self, old: str, new: str) -> None:
        """Replace a text in the pipeline's source."""
        source = self._home / "transformations" / "orders.py"
        assert old in source.read_text()
        source.write_text(source.read_text().replace(old, new))

    def start(self, *arguments: str, independent: bool = False) -> Driver:
        """Begin ``spark-pipelines COMMAND ...``; its flows may say that they feed the table with rows of their own."""
        wait_for_the_port()
        command, *more = arguments
        # Not a SPARK_CONF_DIR: it would stand on the JVM's class path, and its classes come from an archive of another.
        more = (*more, "--properties-file", str(self._properties()))
        env = self._env | {"INDEPENDENT": str(independent).lower()}
        return self._start_driver(Path(pipeline_run.__file__), command, "--spec", self._spec, *more, env=env)

    def run(self, *arguments: str) -> Driver:
        """The same, to its end, which must be a good one."""
        driver = self.start(*arguments)
        assert driver.wait() == 0, driver.output()[-6000:]
        return driver

    def refused(self, *arguments: str) -> str:
        """The same, for a run that must not end well: what it said."""
        driver = self.start(*arguments)
        assert driver.wait() != 0, driver.output()[-6000:]
        return driver.output()

    def checkpoint(self, flow: str, refreshes: int = 0) -> str:
        """Where a flow has its checkpoint, after so many full refreshes."""
        return str(self._storage / "_checkpoints" / "orders" / flow / str(refreshes))

    def refreshes(self, flow: str) -> list[int]:
        """The numbers of a flow's checkpoints."""
        return [int(folder.name) for folder in Path(self.checkpoint(flow)).parent.iterdir()]

    def _properties(self) -> Path:
        properties = self._home / "spark.properties"
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(self._home / "warehouse"),
            # A flow that has failed is not tried again.
            "spark.sql.pipelines.maxFlowRetryAttempts": "0",
        }
        properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        return properties


@pytest.fixture
def pipeline(tmp_path, url, start_driver) -> Pipeline:
    """The example's pipeline; nothing has run yet."""
    return Pipeline(tmp_path, url, start_driver)


def wait_for_the_port() -> None:
    """Wait for other pipelines of this machine: each starts a Connect server, whose port cannot be chosen."""

    def is_free() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", _PORT)) != 0

    assert wait_until(is_free, PATIENCE_SECONDS), f"Somebody listens on port {_PORT}."


def orders(observer: psycopg.Connection) -> list[int]:
    """The ids in the table, each as often as it is there."""
    return [n for (n,) in observer.execute("SELECT order_id FROM orders ORDER BY order_id").fetchall()]


def test_two_flows_restarted_and_killed(pipeline, url, observer):
    """Two flows feed one sink; a run that was SIGKILLed in both transactions is followed by one that loses nothing."""
    pipeline.change("schema(SCHEMA)", 'schema(SCHEMA).option("maxFilesPerTrigger", 1)')
    for half in (0, 1):
        pipeline.add("web", WEB[half * 20 :][:20])
        pipeline.add("tills", TILLS[half * 15 :][:15])
    ensure_ledger(url)
    # Not in the first batches: a first one waits for that of another query that feeds the same table.
    with gate(url, batch_id=1, ends=True) as waiting:
        driver = pipeline.start("run", independent=True)
        driver.wait_for(lambda: observer.execute(waiting).fetchone() == (2,), "both flows to wait")
        driver.sigkill()
    assert orders(observer) == [*WEB[:20], *TILLS[:15]]
    pipeline.run("run")
    assert orders(observer) == [*WEB, *TILLS]
    # As if it had been killed after COMMIT, and before Spark's own note: the batch is handed over again.
    again = rewind(pipeline.checkpoint("web_orders"))
    pipeline.add("tills", LATER)
    pipeline.run("run")
    assert orders(observer) == [*WEB, *TILLS, *LATER]
    assert observer.execute("SELECT array_agg(batch_id) FROM pgonce.replays").fetchone() == ([again],)
    for flow in ("web_orders", "till_orders"):
        assert wrong_ledger(observer, pipeline.checkpoint(flow)) == []
    names = observer.execute("SELECT array_agg(query_name ORDER BY query_name) FROM pgonce.writers").fetchone()
    assert names == (["till_orders", "web_orders"],)


def test_a_full_refresh_is_refused_until_the_query_is_forgotten(pipeline, url, observer):
    """A full refresh is refused with what to type; that empties the table, and the refresh fills it again, once."""
    # One flow; a table that several feed cannot be emptied for one of them, because the others' rows would go, too.
    pipeline.change('@dp.append_flow(target="orders", name="till_orders")\n', "")
    pipeline.add("web", WEB)
    pipeline.run("run")
    old = query_id(pipeline.checkpoint("web_orders"))
    said = pipeline.refused("run", "--full-refresh-all")
    assert "[FOREIGN]" in said
    assert "--truncate --reason ... --yes`" in said
    assert orders(observer) == [*WEB]
    forget_query(old, url, reason="full refresh", truncate=True, quiet_seconds=0)
    pipeline.run("run", "--full-refresh-all")
    assert orders(observer) == [*WEB]
    pipeline.add("web", range(500, 510))
    pipeline.run("run")
    assert orders(observer) == [*WEB, *range(500, 510)]
    said = pipeline.refused("run", "--full-refresh-all")
    assert "[FOREIGN]" in said
    assert orders(observer) == [*WEB, *range(500, 510)]
    # A refresh that was not meant is undone by removing the checkpoint that it has begun.
    shutil.rmtree(pipeline.checkpoint("web_orders", max(pipeline.refreshes("web_orders"))))
    pipeline.add("web", range(600, 605))
    pipeline.run("run")
    assert orders(observer) == [*WEB, *range(500, 510), *range(600, 605)]


def test_a_misspelt_option_is_named_before_a_row_is_written(pipeline, observer):
    """Spark hands options to the sink only when a flow runs: the run names the option, and the next has all rows."""
    pipeline.add("web", WEB)
    pipeline.change('"table": "orders"', '"tabel": "orders"')
    pipeline.run("dry-run")
    said = pipeline.refused("run")
    assert "option 'tabel'" in said
    assert " table?" in said
    assert observer.execute("SELECT to_regclass('orders')").fetchone() == (None,)
    pipeline.change('"tabel": "orders"', '"table": "orders"')
    pipeline.run("run")
    assert orders(observer) == [*WEB]
