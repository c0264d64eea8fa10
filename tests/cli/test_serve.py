"""The command `pgonce serve` as a process: it starts, answers, and ends when it is told to."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from free_ports import free_port
from support.fixtures.driver import wait_until
from support.ledger_history import KAFKA, publish

from pgonce.cli.main import ExitCode
from pgonce.cli.serve import database_of, listening
from pgonce.offsets_store.errors import ConfigurationError


@contextmanager
def running(url, *arguments):
    """The command as a process, which is killed at the end if it has not ended."""
    command = [sys.executable, "-m", "pgonce", "serve", *arguments]
    process = subprocess.Popen(command, env={**os.environ, "PGONCE_URL": url}, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def asked(place, path, host="localhost"):
    """Status and text of an answer at this port or socket; None before it listens."""
    line = http.client.HTTPConnection("127.0.0.1", place if isinstance(place, int) else None, timeout=10)
    try:
        if not isinstance(place, int):
            line.sock = socket.socket(socket.AF_UNIX)
            line.sock.connect(str(place))
        line.request("GET", path, headers={"Host": host})
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return None
    finally:
        line.close()


def page_of(place):
    """The list, once the ledger has been read."""

    def shown():
        found = asked(place, "/")
        return found if found and ">orders<" in found[1] else None

    assert wait_until(shown, 30)
    return shown()


def test_from_its_start_to_its_end(url, store):
    """It says where it listens, answers under a proxy's path too, and ends at a signal although a client waits."""
    publish(url, 3, KAFKA)
    port = free_port()
    with running(url, "--listen", f"127.0.0.1:{port}", "--root-path", "seen/") as process:
        assert process.stderr.readline() == f"pgonce serve: http://127.0.0.1:{port}/seen/ (Ctrl-C ends it)\n"
        _, text = page_of(port)
        assert 'href="/seen/page/pgonce.css' in text
        assert 'href="/seen/queries/' in text
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)
        assert process.stderr.read() == ""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_client_that_takes_no_answer_does_not_keep_it(url, store, sent):
    """It ends within seconds."""
    publish(url, 3, KAFKA)
    port = free_port()
    with running(url, "--listen", f"127.0.0.1:{port}") as process:
        page_of(port)
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.settimeout(1)
            with pytest.raises(TimeoutError):  # noqa: PT012 (the buffers take the first ones)
                while True:
                    line.sendall(b"GET /page/pgonce.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1000)
            process.send_signal(sent)
            process.wait(timeout=10)


def test_through_a_unix_socket(url, store, tmp_path):
    """A proxy on this host reaches it where nobody else of the host may enter."""
    publish(url, 3, KAFKA)
    place = tmp_path / "serve.sock"
    with running(url, "--listen", f"unix:{place}") as process:
        assert process.stderr.readline() == f"pgonce serve: unix:{place} (Ctrl-C ends it)\n"
        assert page_of(place)[0] == 200
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
        assert process.stderr.read() == ""


def test_on_an_address_that_others_reach(url, ledger):
    """It says that there is no login, and a probe by the address of the host is answered."""
    port = free_port()
    with running(url, "--listen", f"0.0.0.0:{port}") as process:
        assert process.stderr.readline().startswith(f"pgonce serve: http://0.0.0.0:{port}/")
        assert process.stderr.readline() == (
            "pgonce serve: everyone who can connect to 0.0.0.0 can read it, because there is no login.\n"
        )
        assert wait_until(lambda: (asked(port, "/healthz", "10.1.2.3:9847") or (0, ""))[0] == 200, 30)
        assert asked(port, "/healthz", "evil.example")[0] == 421


def test_without_the_extra_the_package_to_install_is_named(pgonce, monkeypatch):
    """Where a part is missing, the error names what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    # Another test of this process may have imported it already.
    monkeypatch.delitem(sys.modules, "pgonce.serve.app", raising=False)
    failed = pgonce("serve")
    assert failed.exit_code == ExitCode.FAILED
    assert "[NOT_INSTALLED] pgonce serve needs the package uvicorn" in failed.stderr
    assert "pip install 'pgonce[serve]'" in failed.stderr


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)), ("9000", ("127.0.0.1", 9000)), ("[::1]:1", ("[::1]", 1)),
        ("0.0.0.0:9847", ("0.0.0.0", 9847)), (":9847", ("127.0.0.1", 9847)),
    ],
)  # fmt: skip
def test_a_port_alone_is_one_of_this_host(given, found):
    """A port alone is one of this host, never of all."""
    assert listening(given) == found


@pytest.mark.parametrize("given", ["", "host", "host:", "host:99999", "::1:80", "http://host:80", "a b:80"])
def test_where_it_cannot_listen(given):
    """Another form is refused."""
    with pytest.raises(ConfigurationError, match="BAD_OPTION"):
        listening(given)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@db.example:5432/shop?sslmode=require", "shop at db.example:5432"),
        ("host=/tmp dbname=shop password=s3cret", "shop"), ("service=shop", "shop"), ("", "Postgres"),
    ],
)  # fmt: skip
def test_the_database_that_the_page_names(url, shown, monkeypatch):
    """Its name, host and port, and nothing else of the connection string."""
    for name in ("PGDATABASE", "PGHOST"):
        monkeypatch.delenv(name, raising=False)
    assert database_of(url) == shown
