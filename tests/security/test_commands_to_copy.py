"""
What a streaming role writes into the ledger makes no command that people copy another one, and leads to no server.

Covers: pgonce.cli.doctor, offsets_store.log_lines.
"""

from __future__ import annotations

import re

import pytest
from support.http_server import serving
from support.ledger_history import KAFKA, QUERY, publish
from support.served import served
from typer.testing import CliRunner

from pgonce.cli.main import app

PLANTED = "x; touch /tmp/planted #"


@pytest.fixture
def planted(url, store, admin):
    """A query, a dead letter, skipped replays and a failure that have a shell command for their id and their code."""
    publish(url, 3, KAFKA)
    for statement in (
        b"UPDATE pgonce.writers SET query_id = %s, updated_at = now() - interval '1 hour'",
        b"INSERT INTO pgonce.dead_letters "
        b"(query_id, sink_name, batch_id, target, code, message, destination, row_data) "
        b"VALUES (%s, 'public.orders', 3, 'public.orders', '22P02', 'm', '{}', '{}')",
        b"INSERT INTO pgonce.failures (query_id, sink_name, batch_id, code, message, seen_by) "
        b"SELECT t, 'public.orders', 4, t, 'm', 'commit' FROM CAST(%s AS text) AS t",
        b"INSERT INTO pgonce.replays (writer_id, generation, batch_id, run_id, attempt) "
        b"SELECT w.writer_id, 0, n, 'run ' || n / 3, gen_random_uuid() "
        b"FROM pgonce.writers AS w, generate_series(0, 20) AS n WHERE w.query_id = %s",
    ):
        admin.execute(statement, [PLANTED])


def pgonce(*arguments):
    """What the command shows, as it would be copied."""
    return CliRunner().invoke(app, list(arguments)).output


def test_no_command_has_another_one_in_it(url, planted):
    """An id that is none of Spark's is QUERY there, and a code that is none of ours is not explained."""
    shown = [pgonce(*words, "--url", url) for words in (["health"], ["status"], ["status", PLANTED], ["errors"])]
    shown += [pgonce("dead-letters", PLANTED, "--url", url)]
    with served(url) as site:
        shown += [site.get("/").text, site.query(PLANTED, "public.orders").text]
    commands = [found for text in shown for found in re.findall(r"pgonce [a-z-]+(?: [^\n<]*)?", text)]
    assert {"pgonce errors --query QUERY", "pgonce dead-letters QUERY"} <= {one.strip() for one in commands}
    assert not [one for one in commands if "touch" in one]


def test_doctor_asks_no_server_that_a_role_has_named(url, store, admin, monkeypatch):
    """The location in the ledger may name a server, to which the credentials of who asks would be shown."""
    publish(url, 3, KAFKA)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "mine")
    with serving({}) as server:
        endpoint = server.url.removeprefix("http://")
        location = f"s3://bucket/c?scheme=http&region=us-east-1&endpoint_override={endpoint}"
        admin.execute("UPDATE pgonce.writers SET checkpoint_location = %s", [location])
        said = pgonce("doctor", QUERY, "--url", url)
    assert not server.requests
    assert "[CHECKPOINT_NOT_FOUND]" in said
    assert "endpoint_override" not in said
