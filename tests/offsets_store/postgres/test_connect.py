"""Sessions that a process holds."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from sqlalchemy import create_engine, text
from support.fixtures.postgres import url_at

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.postgres import bounds, connect
from pgonce.offsets_store.postgres.connect import checked_out, parse_url


def test_threads_that_begin_at_the_same_moment_share_one_pool(url, monkeypatch):
    """A driver's first commits, each in a thread of its own, share an engine: a second one would keep its session."""
    made = []

    def slowly_made(*arguments, **options):
        time.sleep(0.2)
        made.append(create_engine(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(sqlalchemy, "create_engine", slowly_made)
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(connect.engine_for, [url] * 4))
    assert made == [engines[0]]
    assert engines == made * 4


def test_a_server_that_does_not_answer_is_waited_for_so_long(proxy):
    """A server that takes a connection and says nothing costs a try as long as ``connect_timeout`` says."""
    began = time.monotonic()
    with proxy.black_hole(), pytest.raises(PgonceError, match="CONNECT_FAILED"):
        connect.connect(proxy.url, connect_timeout=2)
    assert 1.5 < time.monotonic() - began < 15


@pytest.mark.parametrize("named_in", ["url", "environment"])
def test_a_service_file_says_how_long_a_connection_may_be_silent(named_in, tmp_path, monkeypatch):
    """Pgonce's own bounds are for what neither the connection string nor the service says."""
    file = tmp_path / "services.conf"
    file.write_text("[shop]\nhost=db\nconnect_timeout=3\nkeepalives_idle=300\ntcp_user_timeout=0\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    if named_in == "environment":
        monkeypatch.setenv("PGSERVICE", "shop")
    url = "service=shop keepalives_idle=7" if named_in == "url" else "keepalives_idle=7"
    found = parse_url(url)
    assert found == {**found, "connect_timeout": "3", "keepalives_idle": "7", "tcp_user_timeout": "0"}
    assert found["keepalives_count"] == "3"
    assert bounds._sets_its_own(url)  # noqa: SLF001


def test_what_writes_is_read_committed_whatever_the_role_says(url):
    """Also in a session that a reader has had before, which saw one snapshot."""
    at_level, level = url_at(url, "serializable"), text("SELECT current_setting('transaction_isolation')")
    ensure_ledger(at_level)
    for _ in range(2):
        with checked_out(at_level) as connection:
            assert connection.execute(level).scalar_one() == "read committed"
        with reading(at_level) as connection:
            assert connection.execute(level).scalar_one() == "repeatable read"
