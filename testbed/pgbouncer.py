"""
Run a real PgBouncer in front of a test server, as any user or as root.

Runs in: any process, which is its parent. Invariant: it lives as long as its owner and no longer, keeps its address
when it is restarted, and leaves no process and no temporary directory.
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
from typing import Any, Literal

import psycopg
from free_ports import free_port
from maven import MissingTool
from psycopg.conninfo import make_conninfo
from safety_net import SafetyNet
from typing_extensions import Self

PoolMode = Literal["transaction", "session", "statement"]

_TEST_SETTINGS: Mapping[str, str] = {
    "max_client_conn": "500",
    "default_pool_size": "20",
    # How soon to try again after a server was away; the default is 15 seconds.
    "server_login_retry": "1",
}
_GONE_SECONDS = 0.5
_READY_SECONDS = 60.0


class PgBouncer:
    """
    One PgBouncer in front of one server; a context manager, or :meth:`start` and :meth:`stop`.

    Clients are let in without a password, under the server's own user; every database of the server can be reached.

    :param server: libpq parameters of the server (those of a superuser, with the password if it asks for one).
    :param mode: when a session of the server goes to the next client.
    :param settings: these are added to its configuration, or replace settings there.
    :raises MissingTool: if there is no PgBouncer on this machine.
    """

    def __init__(
        self, server: Mapping[str, Any], mode: PoolMode = "transaction", *, settings: Mapping[str, str] | None = None
    ) -> None:
        self._program = _program()
        self._server = server
        self._user = str(server.get("user") or "postgres")
        self._settings = {"pool_mode": mode, **_TEST_SETTINGS, **(settings or {})}
        self.host = "127.0.0.1"
        self.port = free_port()
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._net: SafetyNet | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start, at the same port as before, and return once it answers."""
        account = _account()
        home = self._home = Path(tempfile.mkdtemp(prefix="pgonce-pgbouncer-"))
        home.chmod(0o755)
        configuration = home / "pgbouncer.ini"
        configuration.write_text(self._configuration(home))
        password = str(self._server.get("password") or "")
        (home / "users.txt").write_text(f"{_quoted(self._user)} {_quoted(password)}\n")
        if account:
            for path in (home, *home.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
        self._process = subprocess.Popen(
            [self._program, str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        self._net = SafetyNet(self._process.pid, signal.SIGKILL, home)
        self._wait_until_ready(self._process)
        return self

    def stop(self) -> None:
        """Stop at once: clients and sessions of the server are cut off."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, until :meth:`start`: the server notices only that its clients are gone."""
        self._end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str, **parameters: Any) -> str:
        """Libpq's key=value string for a database, through PgBouncer."""
        return make_conninfo(
            "", **{"host": self.host, "port": self.port, "user": self._user, "dbname": database, **parameters}
        )

    def console(self, command: str) -> list[tuple[Any, ...]]:
        """Run a command on its own console (``SHOW POOLS``, ``PAUSE``, ``KILL <database>``), and return the rows."""
        with psycopg.connect(self.url("pgbouncer"), autocommit=True) as connection:
            cursor = psycopg.ClientCursor(connection).execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def log_text(self) -> str:
        """What it has logged since its start."""
        log = self._home / "log" if self._home else None
        return log.read_text(errors="replace") if log and log.exists() else ""

    def _configuration(self, home: Path) -> str:
        where = " ".join(f"{name}={self._server[name]}" for name in ("host", "port") if self._server.get(name))
        settings = {
            "listen_addr": self.host,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(home / "users.txt"),
            "admin_users": self._user,
            "logfile": str(home / "log"),
            **self._settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        return "\n".join(["[databases]", f"* = {where}", "[pgbouncer]", *lines, ""])

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _READY_SECONDS
        while True:
            try:
                self.console("SHOW VERSION")
            except psycopg.Error as error:
                if process.poll() is None and time.monotonic() < until:
                    time.sleep(0.02)
                    continue
                said = self.log_text()
                self.stop()
                raise RuntimeError(f"PgBouncer does not answer ({error}); its log: {said}") from error
            return

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                self._process.send_signal(how)
            try:
                self._process.wait(_GONE_SECONDS)
            except subprocess.TimeoutExpired:
                # From 1.23 on, SIGTERM waits for the clients to leave.
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._net:
            self._net.release()
            self._net = None
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)


def _program() -> str:
    # Debian puts it in a directory that is not on the PATH of users.
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    found = shutil.which("pgbouncer", path=path)
    if found is None:
        raise MissingTool("PgBouncer is missing: install the package pgbouncer (of Debian, or of your distribution).")
    return found


def _account() -> pwd.struct_passwd | None:
    """PgBouncer refuses to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
