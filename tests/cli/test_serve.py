"""The command `pgonce serve` as a process: it starts, answers, and ends when it is told to."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from urllib.parse import urlencode

import pytest
from free_ports import free_port
from support.ledger_history import KAFKA, QUERY, publish

from pgonce.cli.main import ExitCode
from pgonce.cli.serve import admitted, database_of, listening
from pgonce.offsets_store.errors import ConfigurationError


def test_from_its_start_to_its_end(url, store):
    """It says where it listens, answers under a proxy's path too, and ends at a signal although a page listens."""
    publish(url, 3, KAFKA)
    port = free_port()
    command = [sys.executable, "-m", "pgonce", "serve", "--listen", f"127.0.0.1:{port}", "--root-path", "seen/"]
    process = subprocess.Popen(command, env={**os.environ, "PGONCE_URL": url}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline() == f"pgonce serve: http://127.0.0.1:{port}/seen/ (Ctrl-C ends it)\n"
        text = asked(f"http://127.0.0.1:{port}/")
        assert 'href="/seen/page/pgonce.css' in text
        assert 'href="/seen/queries/' in text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=10) as events:
            assert events.readline() == b"retry: 2000\n"
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)
        assert time.monotonic() - began < 5
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def asked(address: str) -> str:
    """The page, once it has been read."""
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                text = answer.read().decode()
            if ">orders<" in text:
                return text
        except OSError:
            pass
        assert time.monotonic() < until
        time.sleep(0.05)


def over(place, path, **headers):
    """Status and text of an answer through a Unix socket; None before it listens."""
    line = http.client.HTTPConnection("localhost", timeout=10)
    line.sock = socket.socket(socket.AF_UNIX)
    try:
        line.sock.connect(str(place))
    except OSError:
        return None
    line.request("GET", path, headers=headers)
    answer = line.getresponse()
    found = answer.status, answer.read().decode()
    line.close()
    return found


def test_actions_for_those_whom_a_proxy_on_a_socket_names(url, store, tmp_path):
    """Who can open the socket is the proxy: its header says who the person is; without it there is no action."""
    publish(url, 3, KAFKA)
    place, token = tmp_path / "serve.sock", "a token that nobody shows"
    command = [
        sys.executable, "-m", "pgonce", "serve", "--listen", f"unix:{place}", "--allow-actions",
        "--trust-proxy-header", "X-User", "--proxy", "unix",
    ]  # fmt: skip
    known = {**os.environ, "PGONCE_URL": url, "PGONCE_ACTIONS_TOKEN": token}
    process = subprocess.Popen(command, env=known, stderr=subprocess.PIPE, text=True)
    asked_for = f"/letters?{urlencode({'query': QUERY, 'sink': 'public.orders'})}"
    try:
        assert process.stderr.readline() == f"pgonce serve: unix:{place} (Ctrl-C ends it)\n"
        until = time.monotonic() + 30
        while (found := over(place, asked_for, **{"X-User": "ann"})) is None or found[0] != 200:
            assert time.monotonic() < until, found
            time.sleep(0.05)
        assert "Signed in as <b>ann</b>" in found[1]
        assert over(place, asked_for)[0] == 303
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
        assert token not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


class TestWhoMayAct:
    """What --allow-actions needs, before anything listens."""

    TOKEN = "0123456789abcdef"

    def test_what_others_on_the_host_could_use_is_said(self, tmp_path, capsys):
        """A token that everybody may read, and a socket that everybody may open, are named on stderr."""
        file = tmp_path / "token"
        file.write_text(self.TOKEN)
        for mode in (0o600, 0o644):
            file.chmod(mode)
            admitted(True, file, None, None, ())
        tmp_path.chmod(0o755)
        admitted(True, None, None, "X-User", ("unix",), str(tmp_path / "serve.sock"))
        assert re.findall(r"can (?:read|reach) (\S+?):? ", capsys.readouterr().err) == [
            str(file),
            str(tmp_path / "serve.sock"),
        ]

    def test_a_token_from_a_file_or_the_environment(self, tmp_path):
        """The file counts if both are given; the token is not in what is shown of it."""
        file = tmp_path / "token"
        file.write_text(f"{self.TOKEN}\n")
        for given in ((file, None), (None, self.TOKEN), (file, "another one that does not count")):
            found = admitted(True, *given, None, ())
            assert found.token == self.TOKEN
            assert self.TOKEN not in repr(found)

    def test_a_proxy(self):
        """Its header, and from where it is believed."""
        found = admitted(True, None, None, "X-User", ["10.1.2.0/24", "::1"])
        assert (found.token, found.proxy_header, found.by_socket) == (None, "X-User", False)
        assert found.proxies == (ipaddress.ip_network("10.1.2.0/24"), ipaddress.ip_network("::1"))
        assert admitted(True, None, None, "X-User", ["unix"], "/run/x").by_socket

    def test_not_allowed(self):
        """Without the option nobody acts, although the environment has a token."""
        assert admitted(False, None, self.TOKEN, None, ()) is None

    def test_what_is_refused(self, tmp_path):
        """Each with a sentence that does not show the token."""
        (tmp_path / "short").write_text("secret")
        (tmp_path / "bytes").write_bytes(b"\xff\xfe" * 20)
        for given in (
            (True, None, None, None, ()),
            (True, tmp_path / "nothing", None, None, ()),
            (True, tmp_path / "short", self.TOKEN, None, ()),
            (True, tmp_path / "bytes", None, None, ()),
            (True, None, "   ", None, ()),
            (True, None, None, "X-User", ()),
            (True, None, self.TOKEN, None, ("10.1.2.3",)),
            (True, None, None, "X User", ("10.1.2.3",)),
            (True, None, None, "X-User", ("proxy.example",)),
            (True, None, None, "X-User", ("unix",)),
            (False, tmp_path / "short", None, None, ()),
            (False, None, None, "X-User", ()),
            (False, None, None, None, ("10.1.2.3",)),
        ):
            with pytest.raises(ConfigurationError, match="BAD_OPTION") as refused:
                admitted(*given)
            assert "secret" not in str(refused.value)
            assert self.TOKEN not in str(refused.value)


def test_without_the_extra(pgonce, monkeypatch):
    """Where a part is missing, the error names what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    failed = pgonce("serve")
    assert failed.exit_code == ExitCode.FAILED
    assert "[NO_WEB_PARTS] pgonce serve needs the package uvicorn" in failed.stderr
    assert "pip install 'pgonce[serve]'" in failed.stderr


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)), ("9000", ("127.0.0.1", 9000)), ("[::1]:1", ("[::1]", 1)),
        ("0.0.0.0:9847", ("0.0.0.0", 9847)), (":9847", ("127.0.0.1", 9847)),
    ],
)  # fmt: skip
def test_where_it_listens(given, found):
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
