"""A password that expires between batches interrupts nothing; security/test_secrets.py has whole queries with one."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.batches import make_planned_batch
from support.committed_batch import commit, rows_in
from support.rotating_password import FILE, Rotation, who_asked

from pgonce.offsets_store.ledger.migrations import forget_ledger, grants, migrate
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.destination import destination


def permit(admin: psycopg.Connection, user: str, *tables: str) -> None:
    """Make the ledger and the tables, and let the role write to them as docs/security.md says."""
    migrate(admin)
    for table in tables:
        admin.execute(f'CREATE TABLE "{table}" (id bigint, name text)'.encode())
    quoted = ", ".join(f'"{table}"' for table in tables)
    for statement in (*grants(user), f'GRANT INSERT ON {quoted} TO "{user}"'):
        admin.execute(statement.encode())


def without_password(url: str) -> str:
    """The same connection string, without its password."""
    return make_conninfo(**{name: value for name, value in conninfo_to_dict(url).items() if name != "password"})


@pytest.mark.parametrize("source", ["asked", "kept"])
def test_batches_go_on_while_their_password_expires(source, login, url, admin, tmp_path, monkeypatch):
    """Inline and staged, over new connections, without one retry; also where the first token is always too old."""
    password = tmp_path / "password"
    monkeypatch.setenv(FILE, str(password))
    permit(admin, login.user, "events")
    asking = PostgresUrl(without_password(login.url), f"support.rotating_password:{source}")
    rotation = Rotation(url, login.user, password)
    for batch_id in range(10):
        rotation.change()
        rows = [(batch_id * 2, "a"), (batch_id * 2 + 1, "b")]
        verdict = commit(asking, make_planned_batch(batch_id), destination("events"), rows, staged=batch_id % 2 > 0)
        assert verdict is Verdict.NEW
        engine_for(asking).dispose()
        forget_ledger(asking)
    rotation.stop()
    assert rows_in(admin, "events") == [(n, "ab"[n % 2]) for n in range(20)]
    refused = [row[5] for row in who_asked(password)]
    # Each batch connects for its commit, and a staged one also to stage.
    assert refused.count("False") >= 15
    assert refused.count("True") == (refused.count("False") if source == "kept" else 0)
