"""
Who logs in where: what a function of ``passwordFrom`` is told.

Pure: runs wherever a connection is made. Invariant: it holds no secret.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Login:
    """
    One login that is about to be tried.

    :param host: the name of the host, as url, service file or ``PGHOST`` give it; the folder of a Unix socket, or empty
        for libpq's own. With several hosts, the one that is tried now.
    :param port: its port.
    :param user: the role.
    :param dbname: the database.
    :param refused: whether Postgres has just refused the password that was given for this login. A function that keeps
        tokens for a while must make a new one then.
    """

    host: str
    port: int
    user: str
    dbname: str
    refused: bool = False
