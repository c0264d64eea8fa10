"""A password that expires again and again while streams run interrupts nothing, wherever they connect from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.batches import make_planned_batch
from support.committed_batch import commit, rows_in
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings
from support.meanwhile import meanwhile
from support.rotating_password import FILE, Rotation, rotating, who_asked

from pgonce.offsets_store.ledger.migrations import forget_ledger, grants, migrate
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.destination import destination

JOB = Path(__file__).parents[1] / "support" / "token_job.py"
WAYS = ("inline", "staged", "received", "writer", "function")
FILES, ROWS_A_FILE = 5, 50


@contextmanager
def sessions_ending(admin_url: str, user: str, seconds: float) -> Iterator[list[int]]:
    """End all sessions of a role again and again, so that it has to log in again; gives how many were ended."""
    statement = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s"
    with (
        psycopg.connect(admin_url, autocommit=True) as admin,
        meanwhile(lambda: admin.execute(statement, [user]).fetchone()[0], every=seconds) as ended,
    ):
        yield ended


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
    rotation = Rotation(url, login.user, password, 3600)
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


@pytest.mark.spark
@pytest.mark.slow
def test_streams_go_on_while_their_password_expires(login, url, admin, start_driver, tmp_path):
    """
    Rows sent inline, staged, received and written in foreachBatch come once each; old passwords are refused.

    So do those of a query whose function runs a command for each password.
    """
    source, password = tmp_path / "source", tmp_path / "password"
    source.mkdir()
    for number in range(FILES):
        ids = range(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)
        (source / f"{number:04}.json").write_text("".join(json.dumps({"id": n, "name": str(n)}) + "\n" for n in ids))
    permit(admin, login.user, *WAYS)
    where = without_password(login.url)
    settings = {**spark_settings(tmp_path, kafka=False), "spark.master": "local[4]"}
    given = tmp_path / "given.json"
    folders = {"source": str(source), "folder": str(tmp_path / "checkpoints")}
    given.write_text(json.dumps({"url": where, "ways": WAYS, "spark": settings, **folders}))
    with rotating(url, login.user, password, 2.0) as rotation, sessions_ending(url, login.user, 3.0) as ended:
        driver = start_driver(JOB, given, env={FILE: str(password), **with_tests_on_path()})
        assert driver.wait() == 0, driver.output()[-6000:]
        for way in WAYS:
            found = admin.execute(f'SELECT count(*), count(DISTINCT id), max(id) FROM "{way}"'.encode()).fetchone()
            assert (way, *found) == (way, *(FILES * ROWS_A_FILE,) * 2, FILES * ROWS_A_FILE - 1)
        committed = admin.execute("SELECT count(*) FROM pgonce.batches").fetchone()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(where, password=rotation.passwords[0])
    asked = who_asked(password)
    assert committed == (FILES * len(WAYS),)
    assert f"STATUS {len(WAYS)}" in driver.output()
    # The password did expire in between, and sessions did end; many processes have asked, executors among them.
    assert len(rotation.passwords) > 5
    assert sum(ended) > 2
    assert len({row[0] for row in asked if row[5] != "command"}) >= 4
    assert [row[5] for row in asked].count("command") >= 2
    assert not [secret for secret in rotation.passwords if secret in driver.output()]
