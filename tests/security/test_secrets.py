"""A password or token that pgonce has is seen nowhere: no log, plan, error, event, message, table or command line."""

from __future__ import annotations

import json
import os
import pickle
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings
from support.meanwhile import meanwhile
from support.rotating_password import FILE, who_asked
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.offsets_store.errors import ConfigurationError, ConnectError, PgonceError
from pgonce.offsets_store.ledger.migrations import grants, migrate
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.postgres.connect import connect, parse_url

JOB = Path(__file__).parents[1] / "support" / "talkative_job.py"
# Each password has a part that no encoding changes, so that half of it, or a copy in another encoding, is found too.
MARK = "zq7"


def marked(shape: str = "p%40ss w'\"rd&=\\{}") -> tuple[str, str]:
    """A password full of characters that mean something, and the part of it to look for."""
    mark = MARK + secrets.token_hex(6)
    return shape.format(mark), mark


@contextmanager
def sessions_of(url: str, user: str) -> Iterator[set[str]]:
    """All that pg_stat_activity shows of a role's sessions, seen over and over while the block runs."""
    seen: set[str] = set()

    def look() -> None:
        rows = admin.execute("SELECT a::text FROM pg_stat_activity AS a WHERE usename = %s", [user])
        seen.update(row[0] for row in rows)

    with psycopg.connect(url, autocommit=True) as admin, meanwhile(look, every=0.05):
        yield seen


@contextmanager
def command_lines_of(driver) -> Iterator[set[str]]:
    """The command lines of all processes of a driver, seen over and over while the block runs."""
    seen: set[str] = set()

    def look() -> None:
        for process in driver.processes():
            with suppress(psutil.Error):
                seen.add(" ".join(process.cmdline()))

    with meanwhile(look, every=0.2):
        yield seen


def files_under(folder: Path) -> dict[str, bytes]:
    """All files of a folder, by path."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ledger_of(admin: psycopg.Connection) -> dict[str, bytes]:
    """Every table of the ledger, as text."""
    names = admin.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgonce'::regnamespace AND relkind IN ('r', 'v')"
    ).fetchall()
    texts = "SELECT coalesce(string_agg(t::text, ' '), '') FROM pgonce.{} AS t"
    return {
        f"pgonce.{name}": admin.execute(sql.SQL(texts).format(sql.Identifier(name))).fetchone()[0].encode()
        for (name,) in names
    }


@pytest.mark.spark
@pytest.mark.slow
def test_no_password_is_seen_of_a_job_that_logs_all_it_can(login, url, postgres_server, tmp_path, start_driver):
    """Both kinds of ways in, with DEBUG logs, an event log and every failure of connecting, show no password."""
    password, mark = marked()
    wrong, unreachable, key, bad = marked(), marked(), marked(), marked("p/{}@")
    jaas = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{marked("{}")[0]}";'
    )
    kafka = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas}
    executors = marked()
    row = f"row{secrets.token_hex(6)}"
    where = psycopg.conninfo.conninfo_to_dict(login.url)
    where.pop("password")
    passfile = tmp_path / "pgpass"
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    passfile.write_text(f"*:*:*:{login.user}:{escaped}\n")
    passfile.chmod(0o600)
    address = f"{where['host']}:{where['port']}/{where['dbname']}"
    urls = {
        "uri": f"postgresql://{login.user}:{quote(password, '')}@{address}",
        "key value": make_conninfo(password=password, sslpassword=key[0], **where),
        "passfile": make_conninfo(passfile=str(passfile), **where),
        "wrong password": f"postgresql://{login.user}:{quote(wrong[0], '')}@{address}",
        "unreachable": make_conninfo(password=unreachable[0], **{**where, "port": 9}),
        "bad url": f"postgresql://{login.user}:{bad[0]}@{address}",
        "bad sql": make_conninfo(password=password, **where),
        "refused row": make_conninfo(password=password, **where),
        "token": make_conninfo(**where),
        "failing token": make_conninfo(**where),
    }
    sources = {"token": "support.rotating_password:asked", "failing token": "support.rotating_password:failing"}
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(password)
    ways = {
        "uri": ("data source",),
        "key value": ("batch writer",),
        "passfile": ("function",),
        "wrong password": ("data source", "function"),
        "unreachable": ("batch writer",),
        "bad url": ("data source",),
        "bad sql": ("function",),
        "refused row": ("data source",),
        "token": ("data source", "batch writer"),
        "failing token": ("data source", "function"),
    }
    inbox, messages = tmp_path / "inbox", tmp_path / "messages"
    inbox.mkdir()
    (inbox / "1.json").write_text("".join(json.dumps({"id": n, "name": f"{row} {n}"}) + "\n" for n in range(5)))
    (tmp_path / "events").mkdir()
    given = tmp_path / "given.json"
    given.touch(mode=0o600)
    spark = {
        **spark_settings(tmp_path, kafka=False),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(tmp_path / "events"),
    }
    folder = tmp_path / "checkpoints"
    settings = {
        "executor url": make_conninfo(password=password, sslpassword=executors[0], **where),
        "urls": urls,
        "ways": ways,
        "sources": sources,
        "silent url": make_conninfo(**where),
        "password": password,
        "kafka": kafka,
    }
    given.write_text(json.dumps({**settings, "inbox": str(inbox), "folder": str(folder), "spark": spark}))
    with psycopg.connect(url, autocommit=True) as admin:
        change = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(login.user), sql.Literal(password))
        admin.execute(change)
        migrate(admin)
        admin.execute("CREATE TABLE events (id bigint, name text)")
        admin.execute("CREATE TABLE refusing (id bigint CHECK (id < 3), name text)")
        for statement in (*grants(login.user), f'GRANT INSERT ON events, refusing TO "{login.user}"'):
            admin.execute(statement.encode())
        admin.execute(sql.SQL("ALTER ROLE {} SET log_statement = 'all'").format(sql.Identifier(login.user)))
        before = postgres_server.embedded.log_text() if postgres_server.embedded else ""
        env = {"PGONCE_TEST_MESSAGES": str(messages), FILE: str(token), **with_tests_on_path()}
        driver = start_driver(JOB, given, env=env)
        with command_lines_of(driver) as command_lines, sessions_of(url, login.user) as sessions:
            assert driver.wait() == 0, driver.output()[-3000:]
        ledger = ledger_of(admin)
        written = admin.execute("SELECT count(*) FROM events").fetchone()
    output = driver.output()
    log = postgres_server.embedded.log_text().removeprefix(before) if postgres_server.embedded else ""
    seen = {
        "output": output.encode(),
        "server's log": log.encode(),
        "command lines": "\n".join(command_lines).encode(),
        "pg_stat_activity": "\n".join(sessions).encode(),
        "messages": messages.read_bytes(),
        **ledger,
        **files_under(folder),
        **files_under(tmp_path / "events"),
    }
    found = {
        place: secret
        for place, content in seen.items()
        for secret in (mark, wrong[1], unreachable[1], key[1], bad[1], executors[1], MARK)
        if secret.encode() in content
    }
    assert found == {}
    # It was all there to be seen: three connection strings and the environment came through, and every failure was met.
    assert written == (5 * 6,)
    codes = (
        "CONNECT_REFUSED",
        "CONNECT_FAILED",
        "BAD_URL",
        "TARGET_FAILED",
        "CHECK_VIOLATION",
        "PASSWORD_SOURCE_FAILED",
    )
    for code in codes:
        assert f"[{code}]" in output
    assert any("pyspark" in line and "daemon" in line for line in command_lines)
    assert any(b"SparkListenerSQLExecutionStart" in content for content in files_under(tmp_path / "events").values())
    assert pickle.loads(seen["messages"])[0].staged
    assert "DEBUG" in output
    assert any("pgonce" in session for session in sessions)
    assert output.count("PICKLED") >= 3
    assert output.count("of passwordFrom raised RuntimeError, so there is no password") >= 2
    assert {row[5] for row in who_asked(token)} == {"False"}
    assert b"uri_data_source" in ledger["pgonce.writers"]
    # Which row broke the constraint is not for logs either; the function's line that failed is.
    assert f"{row} 3" not in output
    assert 'tx.execute("SELECT no_such_column' in output


BAD_URIS = (
    "postgresql://u:p{}@ss@127.0.0.1:9/db",
    "postgresql://u:p@{}@127.0.0.1:9/db",
    "postgresql://u:p/{}@127.0.0.1:9/db",
    "postgresql://u:{}/x@127.0.0.1:9/db",
    "postgresql://u:p@a/{}@127.0.0.1/db",
    "postgresql://u:p@a:{}@127.0.0.1/db",
    "postgres://u:p@{}:x@127.0.0.1/db",
    "postgresql://u:p%zz{}@127.0.0.1:9/db",
    "postgresql+psycopg://u:{}@127.0.0.1:9/db",
    "jdbc:postgresql://127.0.0.1:9/db?password={}",
    "postgresql://u@127.0.0.1:9/db?password=a&{}",
    "postgresql://u@127.0.0.1:9/db?passwd={}",
    "host=127.0.0.1 port=9 password=it {}",
    "host=127.0.0.1 port=9 password='it's {}'",
    "host=127.0.0.1 port=9 pass={}",
    "host=127.0.0.1 port=9 password=it {}=x",
    "{}",
)


@pytest.mark.parametrize("shape", BAD_URIS)
def test_a_connection_string_that_is_misread_does_not_show_its_password(shape):
    """Where libpq would take a piece of a password for something else, and name it, the string is refused unseen."""
    text = shape.format("zq7secret")
    with pytest.raises(ConfigurationError, match="BAD_URL") as refused:
        connect(text)
    shown = CliRunner().invoke(app, ["status", "--url", text])
    assert shown.exit_code == 2
    assert "zq7secret" not in f"{refused.value}{refused.value.__cause__}{shown.output}"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "postgresql:///db",
        "postgresql://host/db",
        "postgresql://u@host/db",
        "postgresql://u:p%40ss%2F@host:5432/db?application_name=a@b",
        "postgresql://u:p?#x@host/db",
        "postgresql://u:p@one:1,two:2/db?target_session_attrs=read-write",
        "postgresql://u@[::1]:5432/db",
        "postgresql://%2Fvar%2Frun/db",
        "postgresql://@/db?host=/var/run&user=a@b",
        "host=h user=a@b password='x/y@z'",
    ],
)
def test_a_connection_string_that_is_read_as_it_is_meant_is_taken(url):
    """The refusal above meets no sound connection string."""
    assert parse_url(url)["fallback_application_name"] == "pgonce"


@pytest.mark.parametrize(
    "shape",
    [
        "password={}",
        "password='it''s {}'",
        "PASSWORD = '{} x'",
        "postgresql://u:{}@h/db",
        "postgres://u:a%40{}@h:1/db",
        "?password={}&x",
        "sslpassword={}",
    ],
)
def test_a_password_in_somebody_elses_text_is_taken_out(shape):
    """What a function's own SQL or another library puts into an error is scrubbed of connection strings."""
    assert "zq7secret" not in scrub(f"before {shape.format('zq7secret')} after")


def test_errors_of_connecting_are_raised_without_their_cause(login):
    """The error of psycopg, whose frames hold the parameters, is neither cause nor context that a traceback prints."""
    with pytest.raises(ConnectError) as refused:
        connect(login.url, password="zq7wrong")
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    assert "zq7wrong" not in str(refused.value)
    assert isinstance(refused.value, PgonceError)
    assert os.environ.get("PGPASSWORD") is None
