"""
What a test needs of a real cluster: two workers, a driver elsewhere, gates on the executors, and a view of it all.

Runs in: pytest. Invariant: a scenario is three batches of one query, and the second is struck; afterwards the cluster
has two workers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from kafka_broker import MissingTool, spark_connector_jars
from psycopg import sql
from standalone_cluster import StandaloneCluster, Worker
from support.audit import left_behind
from support.fixtures.driver import wait_until
from support.gates import Gates, Moment, Passed, gated
from support.inbox import Inbox
from support.remote_driver import Remote, RemoteQuery

HOSTS = ("127.0.0.2", "127.0.0.3")
ROWS = 40
PARTITIONS = 4
# A worker has one slot, so of four tasks two wait. A task is run a second time three seconds after the others are done.
_SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "640m",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    # Two batches of rows would be merged into fewer partitions.
    "spark.sql.adaptive.enabled": "false",
    "spark.task.maxFailures": "8",
    "spark.decommission.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "3s",
    # Without this Spark waits for a data's own host, and uses one of the two executors alone.
    "spark.locality.wait": "0s",
}


@dataclass(frozen=True)
class Clustered:
    """A cluster of two workers, and a driver that runs elsewhere."""

    cluster: StandaloneCluster
    remote: Remote
    folder: Path

    def worker_at(self, host: str) -> Worker:
        """The worker that runs there."""
        return next(worker for worker in self.cluster.workers if worker.host == host)

    def replace(self, worker: Worker) -> None:
        """Forget a worker that is gone or has been told to go, and start another one at its address."""
        if worker in self.cluster.workers:
            self.cluster.lose(worker)
        self.cluster.add_workers(worker.host)

    def scenario(
        self, url: str, way: str, shape: str, name: str, topic: tuple[str, str] | None = None, **settings: object
    ) -> Scenario:
        """A query of three batches, over files or over a topic; the first one is done."""
        inbox = Inbox(self.folder / name)
        source = (*topic, ROWS) if topic else None
        query = self.remote.query(url, way, name, inbox, shape=shape, topic=source, **settings)
        add_rows(query)
        query.start()
        query.wait_for_all_rows()
        return Scenario(self, query, Gates(self.folder / "gates", query.query_id))


@dataclass(frozen=True)
class Scenario:
    """A query whose second batch is to be struck."""

    at: Clustered
    query: RemoteQuery
    gates: Gates

    def run_struck_batch(self, strike: Callable[[Scenario], None]) -> None:
        """Add the second batch, strike, let all tasks go on, and wait until its rows are there."""
        add_rows(self.query)
        try:
            strike(self)
        finally:
            self.gates.open()
        self.query.wait_for_all_rows()

    def finish(self) -> None:
        """Run the third batch, which nothing strikes, and stop."""
        add_rows(self.query)
        self.query.wait_for_all_rows()
        self.query.stop()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; fail with the driver's output."""
        self.at.remote.wait_for(condition, what)

    def wait_at(self, moment: Moment, partition_id: int) -> Passed:
        """Wait until a task of the second batch stands at a gate; the attempt that stands there, or one of them."""
        self.wait_for(lambda: self.gates.passed(1, moment, partition_id), f"task {partition_id} was there")
        return self.gates.passed(1, moment, partition_id)[0]


def add_rows(query: RemoteQuery) -> None:
    """Give a query the rows of its next batch."""
    path = query.inbox.add(ROWS)
    if query.topic:
        bootstrap_servers, topic, _ = query.topic
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        for number, line in enumerate(path.read_text().splitlines()):
            producer.produce(topic, line, partition=number % 2)
        assert producer.flush(30) == 0


def check(query: RemoteQuery, connection: psycopg.Connection) -> None:
    """Nothing is lost, doubled or left behind, and the ledger has each batch once."""
    table = sql.Identifier(query.table)
    rows = connection.execute(sql.SQL("SELECT * FROM {} ORDER BY id").format(table)).fetchall()
    assert rows == query.inbox.rows
    batches = connection.execute("SELECT batch_id, rows FROM pgonce.batches ORDER BY batch_id").fetchall()
    assert [number for number, _ in batches] == list(range(len(batches)))
    assert sum(rows for _, rows in batches) == len(query.inbox.rows)
    # The last commit's sweep comes after its rows.
    assert wait_until(lambda: left_behind(connection) == []), left_behind(connection)


@contextmanager
def clustered(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    workers: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Clustered]:
    """
    Start a cluster and its driver, and stop them.

    :param host: the address of master and driver.
    :param workers: the addresses of the workers, and what stands before a command that is to run at each.
    """
    places = workers or dict.fromkeys(HOSTS, ())
    gates = directory / "gates"
    gates.mkdir()
    with StandaloneCluster(host) as cluster:
        cluster.add_workers(*places, within=places)
        where = {"spark.master": cluster.master, "spark.driver.host": host, "spark.driver.bindAddress": host}
        # The connector goes to the executors with the driver's other jars.
        with suppress(MissingTool):
            where["spark.jars"] = ",".join(str(jar) for jar in spark_connector_jars())
        remote = Remote(directory, {**_SETTINGS, **where, **gated(gates), **(settings or {})})
        try:
            yield Clustered(cluster, remote, directory)
        finally:
            remote.close()
