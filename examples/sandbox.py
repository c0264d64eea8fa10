"""
Run an example without servers: with a Postgres (and with --kafka a broker) of its own.

    .venv/bin/python examples/sandbox.py examples/files_to_postgres.py
    .venv/bin/python examples/sandbox.py --kafka examples/kafka_orders.py --until-caught-up
    .venv/bin/python examples/sandbox.py

There are some orders to read, in the directory `orders` or in the topic `orders`. Environment variables (libpq's own,
and KAFKA_SERVERS) name the servers, so the example needs no arguments. At the end the rows of its tables are counted,
and everything is removed. Without an example, the servers run until Ctrl-C, and their addresses are printed.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "demo"), str(HERE.parent / "testbed")]


def main() -> int:
    from driver import Workplace
    from embedded_postgres import EmbeddedPostgres
    from kafka_broker import KafkaBroker, spark_connector_jars
    from orders import Customers, Files, Source, Topic

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="start a Kafka broker too (Maven and Java needed)")
    parser.add_argument("example", type=Path, nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgonce-sandbox-")))
        postgres = stack.enter_context(EmbeddedPostgres())
        servers = stack.enter_context(KafkaBroker()).bootstrap_servers if given.kafka else ""
        if given.example is None:
            return _wait(postgres.uri(), servers)
        environment = Workplace(directory, spark_connector_jars() if given.kafka else ()).environment
        environment |= _libpq(postgres.uri())
        if servers:
            environment["KAFKA_SERVERS"] = servers
        source: Source = Topic(servers) if servers else Files(directory / "orders")
        customers = Customers(source)
        for _ in range(10):
            customers.order()
        print(f"{customers.sent.orders:,} orders are there, as {source.name}.", flush=True)
        command = [sys.executable, str(given.example.resolve()), *given.arguments]
        status = subprocess.run(command, cwd=directory, env=environment, check=False).returncode
        _count_tables(postgres.uri())
    return status


def _wait(uri: str, servers: str) -> int:
    # A script that starts this in the background has it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("Type this into another shell. Ctrl-C here removes the servers, with all that they hold.\n")
    print(f"export PGONCE_URL='{uri}'{f' KAFKA_SERVERS={servers}' if servers else ''}", flush=True)
    signal.pause()
    return 0


def _libpq(uri: str) -> dict[str, str]:
    parameters = conninfo_to_dict(uri)
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
    return {variable: str(parameters[name]) for name, variable in names.items()}


def _count_tables(uri: str) -> None:
    with psycopg.connect(uri) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        for (table,) in tables.fetchall():
            count = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
            print(f"{table}: {count[0] if count else 0:,} rows")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
