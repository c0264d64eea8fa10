"""
Drive a query in another process whose log a test reads.

Runs in: pytest. Invariant: all that a query's processes print is in one file. For a query in pytest's own driver, the
workers' output is in pytest's captured output, where a test cannot read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from support import remote_job
from support.fixtures.driver import Driver, with_tests_on_path
from support.fixtures.spark import spark_settings
from support.inbox import Inbox, create_events


@dataclass(frozen=True)
class RemoteQuery:
    """A query of the remote driver: its name there, and where it writes."""

    remote: Remote
    name: str
    way: str
    url: str
    table: str
    checkpoint: str
    inbox: Inbox
    settings: dict[str, Any]
    shape: str = "plain"
    topic: tuple[str, str, int] | None = None
    """Where the rows of the inbox are read from instead: bootstrap servers, topic, and rows a batch."""

    def start(self, **settings: Any) -> None:
        """Start it, with ``settings`` in the place of its own."""
        order = {
            "way": self.way,
            "url": self.url,
            "table": self.table,
            "checkpoint": self.checkpoint,
            "inbox": str(self.inbox.folder),
            "shape": self.shape,
            "topic": self.topic,
            "settings": {**self.settings, **settings},
        }
        started = self.remote.count(f"started {self.name}")
        self.remote.order(f"{self.name}.start", json.dumps(order))
        self.remote.wait_for(lambda: self.remote.count(f"started {self.name}") > started, f"{self.name} started")

    def stop(self) -> None:
        """Stop it, and return when it has."""
        self.remote.order(f"{self.name}.stop", "")
        self.remote.wait_for(lambda: f"stopped {self.name}" in self.remote.output(), f"{self.name} stopped")

    def error(self) -> str:
        """Wait until it has failed, and give the text of its exception."""
        self.remote.wait_for(lambda: f"failed {self.name}:" in self.remote.output(), f"{self.name} failed")
        return self.remote.output().partition(f"failed {self.name}:")[2].partition("\nstarted ")[0]

    def wait_for_all_rows(self) -> None:
        """Wait until its table has as many rows as the inbox."""
        count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(self.table))

        def are_there() -> bool:
            with psycopg.connect(self.url) as connection:
                return connection.execute(count).fetchone() == (len(self.inbox.rows),)

        self.remote.wait_for(are_there, f"the rows of {self.name} were there")
        # Spark notes a batch after the commit, and a query that is stopped before that runs it again.
        batches = len(list(self.inbox.folder.glob("*.json")))
        self.remote.wait_for(
            (Path(self.checkpoint) / f"commits/{batches - 1}").exists, f"{self.name} noted batch {batches - 1}"
        )

    @property
    def query_id(self) -> str:
        """The id that Spark keeps in the checkpoint, and that log lines name."""
        return str(json.loads((Path(self.checkpoint) / "metadata").read_text())["id"])


class Remote:
    """
    The driver: one Spark for many queries, with a slot for each of a test's.

    :param more: settings of Spark that are added, or take the place of others.
    """

    def __init__(self, directory: Path, more: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._orders = directory / "orders"
        self._orders.mkdir()
        settings = spark_settings(directory, kafka=False) | {
            "spark.master": "local[6]",
            "spark.ui.showConsoleProgress": "false",
            **(more or {}),
        }
        here = Path(remote_job.__file__)
        arguments = [str(self._orders), json.dumps(settings)]
        self._driver = Driver(here, arguments, with_tests_on_path(), directory)
        self._driver.wait_for_output("ready")

    def query(
        self,
        url: str,
        way: str,
        name: str,
        inbox: Inbox,
        *,
        shape: str = "plain",
        topic: tuple[str, str, int] | None = None,
        **settings: Any,
    ) -> RemoteQuery:
        """A query over an inbox, with a table and a checkpoint of its own; not started."""
        table = f"{name}_{way}"
        create_events(url, table, keyed=False)
        checkpoint = str(inbox.folder.parent / f"checkpoint_{table}")
        return RemoteQuery(self, table, way, url, table, checkpoint, inbox, settings, shape, topic)

    def output(self) -> str:
        """All that driver, JVM and workers have printed so far."""
        return self._driver.output()

    def count(self, text: str) -> int:
        """How many lines begin with a text."""
        return len(re.findall(f"^{re.escape(text)}$", self.output(), re.MULTILINE))

    def order(self, file: str, text: str) -> None:
        """Give an order; the file appears whole."""
        unseen = self._directory / file
        unseen.write_text(text)
        unseen.rename(self._orders / file)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; fail with the driver's output."""
        self._driver.wait_for(condition, what)

    def close(self) -> None:
        """Kill the driver and all that belongs to it."""
        self._driver.sigkill()
