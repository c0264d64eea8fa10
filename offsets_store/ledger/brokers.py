"""
Note in ``pgonce.brokers`` which Kafka brokers a query names, so that its lag can be measured by people who do not know.

Runs at the first batch of a run, in a thread of its own. Invariants: nothing is raised, no commit waits for
it, and only host names and ports are kept: never a login.
"""

from __future__ import annotations

import logging
import re
import threading
import time

import psycopg

from ..errors import PgonceError
from ..postgres.connect import connect
from .failures import BEGIN_BRIEFLY

_log = logging.getLogger("pgonce")

# The first batch of all creates the ledger, after its brokers were asked.
_TRIES = 3
_PAUSE_SECONDS = 5.0
_ADDRESS = re.compile(r"(?:[A-Za-z_]+://)?((?:[\w-]+\.)*[\w-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?", re.ASCII)
_NOTE = """
INSERT INTO pgonce.brokers AS b (query_id, bootstrap_servers) VALUES (%s, %s)
ON CONFLICT (query_id) DO UPDATE SET bootstrap_servers = excluded.bootstrap_servers, noted_at = clock_timestamp()
WHERE b.bootstrap_servers <> excluded.bootstrap_servers
"""


def addresses(servers: str) -> str:
    """
    Hosts and ports, and nothing else.

    >>> addresses("SASL_SSL://broker:9093, user:secret@elsewhere:1, [::1]:9092")
    'broker:9093,[::1]:9092'
    """
    found = (_ADDRESS.fullmatch(part.strip()) for part in servers.split(","))
    return ",".join(f"{each[1]}{each[2] or ''}" for each in found if each)


def note_brokers(url: str, query_id: str, servers: str) -> threading.Thread | None:
    """Note them, as far as that can be done; the thread that does it, if there is anything to note."""
    known = addresses(servers)
    if not known:
        return None
    noting = threading.Thread(target=_note, args=[url, query_id, known], name="pgonce-brokers", daemon=True)
    try:
        noting.start()
    except RuntimeError as error:
        _log.debug("the brokers are not noted: %s", error)
        return None
    return noting


def note_in_tx(session: psycopg.Connection, query_id: str, servers: str) -> None:
    """
    Store hosts and ports.

    :raises psycopg.Error: what Postgres says.
    """
    session.execute(_NOTE, [query_id, servers])


def _note(url: str, query_id: str, servers: str) -> None:
    for left in reversed(range(_TRIES)):
        try:
            with connect(url, connect_timeout=2) as session:
                session.execute(BEGIN_BRIEFLY)
                note_in_tx(session, query_id, servers)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            if not left:
                _log.debug("the brokers are not noted, because the ledger has no place for them: %s", error)
            time.sleep(_PAUSE_SECONDS if left else 0)
        except (psycopg.Error, PgonceError) as error:
            _log.debug("the brokers are not noted: %s", type(error).__name__)
            return
        else:
            return
