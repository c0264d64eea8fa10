"""
Say to Postgres's JDBC driver what a libpq connection string says.

Runs on the driver, which connects once to learn what libpq makes of it: services, environment and ``~/.pgpass`` count.
Invariant: a parameter is translated or refused, never ignored; and the password is in none of the texts that are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.errors import ConfigurationError, bad_option
from pgonce.offsets_store.postgres.bounds import KEEPALIVES, server_settings, time_limits
from pgonce.offsets_store.postgres.connect import connect, parse_url
from pgonce.offsets_store.postgres.passwords import resolved
from pgonce.offsets_store.postgres.postgres_url import source_of

# libpq's parameter: the JDBC driver's, which takes the same values.
_SAME = {
    **{name: name for name in ("user", "sslmode", "sslrootcert", "sslcert", "sslpassword", "options")},
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "sslnegotiation": "sslNegotiation",
}
# As in a commit, what a role or a database has set for its sessions must not end a flush, nor make the text NULL of a
# NULL in an array of values. And a flush that has waited for a lock must see what has changed meanwhile.
_SETTINGS = {
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "array_nulls": "on",
    "default_transaction_isolation": r"read\ committed",
}
_BALANCED = {"random": "true", "disable": "false"}
# Java uses none below TLS 1.2 by itself.
_TLS = frozenset({"TLSv1", "TLSv1.1", "TLSv1.2"})
_TARGET_SESSION = {"any": "any", "read-write": "primary", "primary": "primary"}
# What pgonce sets itself, or what only says how libpq works.
_NOT_NEEDED = frozenset({
    *("host", "hostaddr", "port", "dbname", "password", "passfile", "service", "servicefile"),
    *("application_name", "target_session_attrs", "load_balance_hosts"),
    *("client_encoding", "fallback_application_name", "keepalives", *KEEPALIVES, "tcp_user_timeout", "connect_timeout"),
    *("krbsrvname", "sslcompression", "sslsni"),
    *("min_protocol_version", "max_protocol_version"),
})  # fmt: skip


@dataclass(frozen=True)
class JdbcUrl:
    """Where executors connect, and with which properties, the password among them."""

    url: str
    properties: dict[str, str] = field(repr=False)
    session: dict[str, str] = field(default_factory=dict)
    """What a session has after login: the JDBC driver sets the first two itself, over what the role has."""


def jdbc_url(url: str, run_id: str, lock_timeout: float) -> JdbcUrl:
    """
    How executors reach the database that ``url`` means here.

    :raises ConfigurationError: BAD_URL, for what the JDBC driver cannot do.
    :raises ConnectError: if the database cannot be reached.
    """
    if source_of(url) is not None:
        raise _refused(
            "The password comes from passwordFrom, a function in Python, which executors cannot call in this mode.",
            "Put the password into ~/.pgpass or PGPASSWORD on the driver, or into url. A token that expires would "
            "end the query when a new connection is made.",
        )
    with connect(url) as connection:
        info = connection.info
        given, hosts, database = info.get_parameters(), _hosts(url, info), info.dbname
        password = info.password
        session = _session(connection)
        # The last ones let the server notice that an executor is gone as soon as the executor would notice the same of
        # the server.
        settings = {"lock_timeout": str(int(lock_timeout * 1000)), **_SETTINGS, **server_settings(connection)}
    properties = {
        "ApplicationName": application_name(run_id),
        "tcpKeepAlive": "true",
        "socketTimeout": str(_silence(parse_url(url), lock_timeout)),
        # Nothing, and less than nothing, is for ever.
        "connectTimeout": str(max(0, int(given.get("connect_timeout", "15")))),
    }
    if given.get("sslrootcert") == "system":
        raise _refused(
            "sslrootcert=system is libpq's: Postgres's JDBC driver would look for a file of that name.",
            "Name a file with the certificate of the authority, which every executor has.",
        )
    if "sslkey" in given:
        raise _refused(
            "The connection string sets sslkey, and Postgres's JDBC driver reads another form of keys than libpq.",
            "Leave it out: let executors log in with a password.",
        )
    for name, value in given.items():
        if name in _SAME:
            properties[_SAME[name]] = value
        elif (name == "ssl_min_protocol_version" and value in _TLS) or (name == "sslcertmode" and value == "allow"):
            continue
        elif name not in _NOT_NEEDED:
            raise _refused(
                f"The connection string sets {name}, which Postgres's JDBC driver does not have.", f"Leave {name} out."
            )
    has_root = "sslrootcert" in given or Path("~/.postgresql/root.crt").expanduser().exists()
    if given.get("sslmode") == "require" and has_root:
        # libpq verifies the certificate then, and the JDBC driver would verify nothing.
        properties["sslmode"] = "verify-ca"
    properties["loadBalanceHosts"] = _BALANCED[given.get("load_balance_hosts", "disable")]
    wanted = given.get("target_session_attrs", "any")
    if wanted not in _TARGET_SESSION:
        raise _refused(
            f"target_session_attrs={wanted} means a server that cannot be written to.", "Write read-write, or any."
        )
    properties["targetServerType"] = _TARGET_SESSION[wanted]
    options = [f"-c {name}={value}" for name, value in settings.items()]
    properties["options"] = " ".join(filter(None, [properties.get("options"), *options]))
    if password:
        properties["password"] = password
    return JdbcUrl(f"jdbc:postgresql://{hosts}/{quote(database, safe='')}", properties, session)


def _session(connection: psycopg.Connection) -> dict[str, str]:
    row = connection.execute("SELECT current_setting('TimeZone'), current_setting('DateStyle')").fetchone()
    zone, style = row or ("UTC", "ISO, MDY")
    # The JDBC driver needs ISO for what it reads. The order is how Postgres reads 03/04/2026.
    settings = {"TimeZone": zone, "DateStyle": f"ISO, {style.rpartition(', ')[2]}"}
    # Not in the options of the connection, because older servers do not know it.
    return {**settings, **dict.fromkeys(time_limits(connection), "0")}


def _silence(parameters: Mapping[str, Any], lock_timeout: float) -> int:
    """After how many seconds without an answer the server is taken for gone: a flush waits for at most a lock."""
    milliseconds = int(parameters["tcp_user_timeout"])
    return -(-milliseconds // 1000) + int(lock_timeout) if milliseconds else 0


def _hosts(url: str, info: psycopg.ConnectionInfo) -> str:
    # psycopg tries several hosts one by one, so the connection knows only the one that answered.
    given = {**resolved(parse_url(url)), "sslmode": info.get_parameters().get("sslmode")}
    if given.get("hostaddr") and given.get("host") and given.get("sslmode") == "verify-full":
        raise _refused(
            "The connection string sets host and hostaddr, and Postgres's JDBC driver would compare the server's "
            "certificate with the address.",
            "Leave hostaddr out.",
        )
    names = str(given.get("hostaddr") or given.get("host") or info.host).split(",")
    ports = str(given.get("port") or info.port).split(",")
    ports = ports * len(names) if len(ports) == 1 else ports
    if any(not name or name.startswith(("/", "@")) for name in names):
        raise _refused(
            "The connection goes through a Unix socket, which Postgres's JDBC driver cannot use.",
            "Name a host in url, such as localhost, and let Postgres listen there (listen_addresses).",
        )
    return ",".join(f"{f'[{name}]' if ':' in name else name}:{port}" for name, port in zip(names, ports, strict=True))


def _refused(what: str, remedy: str) -> ConfigurationError:
    return bad_option("BAD_URL", what, remedy)
