"""
The command ``pgonce serve``: a page, metrics and checks of health, from one process.

Runs in a shell or under a supervisor, without Spark. Invariants: it listens on this host alone unless it is told
otherwise, and then says who can read it; nothing can be changed there; what it needs in addition to pgonce is imported
here and nowhere else.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Annotated

import typer

from pgonce.offsets_store.errors import bad_option, needing
from pgonce.offsets_store.kafka.settings import brokers
from pgonce.offsets_store.postgres.connect import parse_url

from .explain import error_entries
from .kafka import KafkaConfig, Servers, kafka_options
from .terms import Url

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
    bootstrap_servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Show all queries in a browser, and to Prometheus and probes, until it is stopped."""
    socket = listen.removeprefix("unix:") if listen.startswith("unix:") else None
    host, port = listening(listen) if socket is None else ("", 0)
    kafka = brokers(bootstrap_servers, kafka_options(kafka_config) if bootstrap_servers else None)
    with needing("serve", "pgonce serve"):
        from pgonce.serve.app import Settings, application, server
        from pgonce.serve.lag import PartitionLags
        from pgonce.serve.reader import Reader

    lag = PartitionLags(url, kafka)
    reader = Reader(url, every, lag.measured)
    known = {code: (entry.meaning, entry.remedy) for code, entry in error_entries().items()}
    settings = Settings(
        database=database_of(url),
        names=tuple(allow_host or ()),
        root_path=("/" + root_path.strip("/")) if root_path.strip("/") else "",
        with_rows=not hide_rows,
        explained=known.get,
    )
    served = server(
        application(reader, settings, lag),
        host=host.strip("[]"),
        port=port,
        uds=socket,
        root_path=settings.root_path,
    )
    where = f"http://{host}:{port}{settings.root_path}/" if socket is None else f"unix:{socket}"
    typer.echo(f"pgonce serve: {where} (Ctrl-C ends it)", err=True)
    if socket is None and not is_of_this_host(host):
        typer.echo(
            f"pgonce serve: everyone who can connect to {host} can read it, because there is no login.", err=True
        )
    served.run()


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


def is_of_this_host(host: str) -> bool:
    """
    Whether this address can be reached from this host alone. A name other than localhost may lead anywhere.

    >>> is_of_this_host("127.0.0.1"), is_of_this_host("[::1]"), is_of_this_host("0.0.0.0"), is_of_this_host("[::]")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def database_of(url: str) -> str:
    """The name of the database and its host and port, for people; nothing else of the connection string."""
    found = parse_url(url)
    name = found.get("dbname") or os.environ.get("PGDATABASE") or found.get("service") or ""
    host = str(found.get("host") or found.get("hostaddr") or os.environ.get("PGHOST") or "")
    port = f":{found['port']}" if "port" in found else ""
    where = "" if not host or host.startswith("/") else host + port
    return " at ".join(part for part in (str(name), where) if part) or "Postgres"
