"""
Complete names while a command is typed: of queries and sinks from the ledger, of codes and states from the documents.

Runs in the shell's completion, before the command does. Invariant: it is silent. Where Postgres cannot be asked within
two seconds, nothing is proposed, and what a person types stays as it is.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable

import typer

from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl

from .explain import error_entries, state_entries

_SECONDS = 2.0
_PLAIN = re.compile(r"[\w.:@+=/][\w.:@+=/-]*")
# Retired and replaced queries too, because some commands are about them; the newest are proposed first.
_NAMES = """
SELECT w.query_name, w.query_id, w.sink_name FROM pgonce.writers AS w
ORDER BY w.updated_at DESC NULLS LAST LIMIT 1000
"""


def queries(context: typer.Context, incomplete: str) -> list[str]:
    """The names of queries that begin so; the id of one that has no name, or whose id is being typed."""
    found: dict[str, None] = {}
    for name, query_id, _ in _known(context):
        if name and name.startswith(incomplete):
            found[name] = None
        elif query_id.startswith(incomplete) and (incomplete or not name):
            found[query_id] = None
    return _safe(found)


def sinks(context: typer.Context, incomplete: str) -> list[str]:
    """The sinks that begin so: of the query that stands on the command line, or of all."""
    # The context has no arguments while an option lacks its value, so the words are looked at: bash's, or zsh's.
    words = {word for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS") for word in os.environ.get(name, "").split()}
    known = [row for row in _known(context) if row[2].startswith(incomplete)]
    own = [row for row in known if words & set(row[:2])]
    return _safe({sink: None for _, _, sink in own or known})


def explained(incomplete: str) -> list[str]:
    """Codes of errors and states of queries that begin so, in either case."""
    names = [*error_entries(), *state_entries()]
    return [name for name in names if name.lower().startswith(incomplete.lower())]


def _safe(found: dict[str, None]) -> list[str]:
    """Without what a shell or a terminal would obey, because a name comes to stand on the command line as it is."""
    return [text for text in found if _PLAIN.fullmatch(text)]


def _known(context: typer.Context) -> list[tuple[str | None, str, str]]:
    url = context.params.get("url") or os.environ.get("PGONCE_URL", "")
    return _in_time(lambda: _read(PostgresUrl(url, os.environ.get("PGONCE_PASSWORD_FROM")))) or []


def _read(url: str) -> list[tuple[str | None, str, str]]:
    with connect(url, connect_timeout="2") as connection:
        connection.execute("SET statement_timeout = '1s'; SET default_transaction_read_only = on")
        return connection.execute(_NAMES).fetchall()


def _in_time(read: Callable[[], list[tuple[str | None, str, str]]]) -> list[tuple[str | None, str, str]] | None:
    """What is read, if that takes no longer than a person waits, and does not fail."""
    found: list[list[tuple[str | None, str, str]]] = []

    def run() -> None:
        # Whatever goes wrong here, the person is typing: the command itself will say it.
        try:
            found.append(read())
        except Exception:  # noqa: BLE001
            return

    logging.disable()
    try:
        # A daemon, so that the shell does not wait for a server that does not answer.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_SECONDS)
    finally:
        logging.disable(logging.NOTSET)
    return found[0] if found else None
