"""
A role whose password changes when a test says so, so that old ones are refused, and sources that know the newest.

Runs in: pytest, and wherever the product asks for a password (drivers, Spark's workers, executors, the command line):
the functions below are what ``passwordFrom`` names. They read the password from the file that
``PGONCE_TEST_PASSWORD_FILE`` names, and note there who asked.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import psycopg
from psycopg import sql

FILE = "PGONCE_TEST_PASSWORD_FILE"


def _file() -> Path:
    return Path(os.environ[FILE])


def _note(login, how) -> None:
    with _file().with_suffix(".asked").open("a") as noted:
        noted.write(f"{os.getpid()} {login.host} {login.port} {login.user} {login.dbname} {how}\n")


def asked(login) -> str:
    """The password that counts now; each login that asked for it is noted."""
    _note(login, login.refused)
    return _file().read_text()


def kept(login) -> str:
    """What a function gives that keeps tokens too long: an old password, unless it is told that it was refused."""
    return asked(login) if login.refused else "zq7old" + asked(login)


def failing(login) -> str:
    """What a function does that fails with the password in its words, in its frame and in its cause."""
    password = asked(login)
    raise RuntimeError(f"the vault said: token={password}") from ValueError(password)


def who_asked(file: Path) -> list[tuple[str, ...]]:
    """Process id, host, port, user, database, and whether the password before was refused, of each call so far."""
    noted = file.with_suffix(".asked")
    return [tuple(line.split(" ")) for line in noted.read_text().splitlines()] if noted.exists() else []


class Rotation:
    """Changes the password of a role; each is in the file as soon as Postgres takes it."""

    def __init__(self, admin_url: str, user: str, file: Path) -> None:
        self._user, self._file = user, file
        self._admin = psycopg.connect(admin_url, autocommit=True)

    def change(self) -> str:
        """Change it once, now."""
        password = f"zq7{secrets.token_hex(8)}"
        # As a token service does: what it gives is valid at once. A reader sees the old text, or the new one.
        self._admin.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(self._user), sql.Literal(password))
        )
        fresh = self._file.with_suffix(".new")
        fresh.write_text(password)
        fresh.replace(self._file)
        return password

    def stop(self) -> None:
        """Change nothing any more."""
        self._admin.close()
