"""
The command ``pgonce serve``: a page, metrics, checks of health and JSON, from one process.

Runs in a shell or under a supervisor, without Spark. Invariants: it listens on this host alone unless it is told
otherwise, and nothing can be changed there unless that is asked for; what it needs in addition to pgonce is imported
here and nowhere else.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgonce.offsets_store.errors import UNCHANGED, NotInstalledError, bad_option
from pgonce.offsets_store.kafka.settings import brokers
from pgonce.offsets_store.postgres.connect import parse_url
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl

from .doctor import doctor_says
from .explain import error_entries
from .kafka import KafkaConfig, Measure, Servers, kafka_options
from .terms import Url

if TYPE_CHECKING:
    from pgonce.serve.security import Admission

_PARTS = ("starlette", "uvicorn", "jinja2", "prometheus_client", "markupsafe")
_LISTEN = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]*):)?(\d{1,5})")
_HIGHEST_PORT = 65535


def serve(
    url: Url = "",
    listen: Annotated[
        str,
        typer.Option(help="HOST:PORT, or unix:PATH. Who can connect can read what is shown there, without a login."),
    ] = "127.0.0.1:9847",
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks at the ledger.")] = 5.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", help="A host name under which it is reached, in addition to addresses and localhost."
        ),
    ] = None,
    root_path: Annotated[str, typer.Option(help="The path under which a proxy shows it, such as /pgonce.")] = "",
    hide_rows: Annotated[
        bool, typer.Option("--hide-rows", help="Do not show the rows of dead letters, nor their messages.")
    ] = False,
    gone_after: Annotated[
        float, typer.Option(min=0, help="Hours after which a query that has ended leaves the metrics.")
    ] = 24.0,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let people who prove who they are replay and discard dead letters, retire and accept.",
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token that people sign in with. PGONCE_ACTIONS_TOKEN can have it instead."),
    ] = None,
    trust_proxy_header: Annotated[
        str | None, typer.Option(metavar="NAME", help="The header in which a proxy says who the person is.")
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="The address or network of that proxy, or unix with --listen unix:PATH. No other is believed."
        ),
    ] = None,
    actions_url: Annotated[
        str,
        typer.Option(envvar="PGONCE_ACTIONS_URL", help="As --url, for the role that acts. Without it, --url is used."),
    ] = "",
    bootstrap_servers: Servers = None,
    kafka_config: KafkaConfig = None,
    measure: Measure = False,
) -> None:
    """Show all queries in a browser, and to Prometheus, probes and programs, until it is stopped."""
    socket = listen.removeprefix("unix:") if listen.startswith("unix:") else None
    host, port = listening(listen) if socket is None else ("", 0)
    kafka = brokers(bootstrap_servers, kafka_options(kafka_config) if bootstrap_servers else None)
    needed_parts()
    from pgonce.serve.actions import ActionSettings
    from pgonce.serve.app import Settings, application
    from pgonce.serve.lag import PartitionLags
    from pgonce.serve.reader import Reader
    from pgonce.serve.server import Server

    admission = admitted(
        allow_actions, token_file, os.environ.get("PGONCE_ACTIONS_TOKEN"), trust_proxy_header, proxy or (), socket
    )
    acting = PostgresUrl(actions_url, getattr(url, "password_from", None)) if actions_url else url
    lag = PartitionLags(url, kafka, kafka_options(kafka_config) if measure and kafka is None else None)
    reader = Reader(url, every, lag.measured)
    known = {code: (entry.meaning, entry.remedy) for code, entry in error_entries().items()}
    settings = Settings(
        database=database_of(url),
        names=tuple(allow_host or ()),
        root_path=("/" + root_path.strip("/")) if root_path.strip("/") else "",
        with_rows=not hide_rows,
        gone_after=gone_after * 3600,
        explained=known.get,
        actions=ActionSettings(acting, admission, doctor_says) if admission else None,
    )
    server = Server(
        application(reader, settings, lag),
        reader,
        host=host.strip("[]"),
        port=port,
        uds=socket,
        root_path=settings.root_path,
    )
    where = f"http://{host}:{port}{settings.root_path}/" if socket is None else f"unix:{socket}"
    typer.echo(f"pgonce serve: {where} (Ctrl-C ends it)", err=True)
    server.run()


def listening(text: str) -> tuple[str, int]:
    """
    The host and the port of ``HOST:PORT``; a port alone is one of this host.

    :raises ConfigurationError: BAD_OPTION.
    """
    found = _LISTEN.fullmatch(text)
    if found is None or int(found[2]) > _HIGHEST_PORT:
        raise bad_option(
            "BAD_OPTION",
            f"--listen {text!r} is neither HOST:PORT nor unix:PATH.",
            "Write 127.0.0.1:9847, [::1]:9847, 0.0.0.0:9847 or unix:/run/pgonce/serve.sock.",
        )
    return found[1] or "127.0.0.1", int(found[2])


_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


def admitted(
    allowed: bool,
    token_file: Path | None,
    token: str | None,
    header: str | None,
    proxies: Sequence[str],
    socket: str | None = None,
) -> Admission | None:
    """
    How people prove who they are; None if nothing may be changed.

    :param token: that of the environment, if it has one.
    :raises ConfigurationError: BAD_OPTION.
    """
    if not allowed:
        for name, given in (("--token-file", token_file), ("--trust-proxy-header", header), ("--proxy", proxies)):
            if given:
                raise bad_option("BAD_OPTION", f"{name} has no effect.", "Give --allow-actions too.")
        return None
    from pgonce.serve.security import LEAST_TOKEN, Admission

    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8")
            if _is_open(token_file):
                typer.echo(
                    f"pgonce serve: every user of this host can read {token_file}: run chmod o= on it.", err=True
                )
        except (OSError, UnicodeDecodeError) as error:
            what = f"--token-file {str(token_file)!r} cannot be read ({type(error).__name__})."
            raise bad_option("BAD_OPTION", what, "Name a file of text that this user can read.") from None
    token = token.strip() if token is not None else None
    if token is not None and len(token) < LEAST_TOKEN:
        raise bad_option(
            "BAD_OPTION",
            f"The token for actions has fewer than {LEAST_TOKEN} characters.",
            "Make one: openssl rand -base64 32.",
        )
    if header is None and token is None:
        raise bad_option(
            "BAD_OPTION",
            "--allow-actions needs to know who may act.",
            "Give --token-file or PGONCE_ACTIONS_TOKEN, or --trust-proxy-header and --proxy.",
        )
    if (header is None) != (not proxies):
        raise bad_option(
            "BAD_OPTION",
            "--trust-proxy-header and --proxy need each other: others could send the header as well.",
            "Name the header, and the address from which the proxy connects.",
        )
    if header is not None and not _HEADER.fullmatch(header):
        raise bad_option("BAD_OPTION", f"--trust-proxy-header {header!r} is no name of a header.", "Write X-User.")
    by_socket = "unix" in proxies
    if by_socket and socket is None:
        raise bad_option("BAD_OPTION", "--proxy unix has no effect.", "Listen on a socket: --listen unix:PATH.")
    # Uvicorn lets everyone write to the socket itself, so its folder has to keep others out.
    if by_socket and socket is not None and _is_open(Path(socket).absolute().parent):
        typer.echo(
            f"pgonce serve: every user of this host can reach {socket} and send the proxy's header. Listen on a socket "
            "in a folder that only the proxy and this user may enter.",
            err=True,
        )
    try:
        networks = tuple(ipaddress.ip_network(one) for one in proxies if one != "unix")
    except ValueError:
        raise bad_option(
            "BAD_OPTION", f"--proxy {' '.join(proxies)!r} is no address.", "Write 10.1.2.3 or 10.1.2.0/24."
        ) from None
    return Admission(token, header, networks, by_socket)


def needed_parts() -> None:
    """
    Import what the extra ``pgonce[serve]`` brings.

    :raises ConfigurationError: NO_WEB_PARTS.
    """
    import importlib

    for name in _PARTS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise NotInstalledError(
                "NO_WEB_PARTS",
                f"pgonce serve needs the package {name}, which is not installed here.",
                UNCHANGED,
                "Install what it needs: pip install 'pgonce[serve]'.",
            ) from error


def database_of(url: str) -> str:
    """The name of the database and its host and port, for people; nothing else of the connection string."""
    found = parse_url(url)
    name = found.get("dbname") or os.environ.get("PGDATABASE") or found.get("service") or ""
    host = str(found.get("host") or found.get("hostaddr") or os.environ.get("PGHOST") or "")
    port = f":{found['port']}" if "port" in found else ""
    where = "" if not host or host.startswith("/") else host + port
    return " at ".join(part for part in (str(name), where) if part) or "Postgres"


def _is_open(path: Path) -> bool:
    """Whether every user of this host may enter a folder, or read a file. (A secret of Kubernetes is such a file.)"""
    return path.exists() and bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH))
