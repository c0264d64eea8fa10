"""
How does a person name Kafka brokers on the command line, and say how to log in to them?

Runs in a shell. Invariant: passwords stand in a file, never on the command line, where all users of a machine see them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.kafka_settings import PREFIX, Brokers, brokers

Servers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", "--bootstrap", help="Kafka brokers (host:port,...) to ask."),
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        envvar="PGONCE_KAFKA_CONFIG",
        help="A file of Kafka's settings (security.protocol=SASL_SSL ...), as Kafka's own tools take it.",
    ),
]


def kafka_options(path: Path | None) -> dict[str, str]:
    """
    The settings in a file, by their names in Spark.

    :raises ConfigurationError: BAD_OPTION, for a file that cannot be read.
    """
    if path is None:
        return {}
    try:
        found = parse_properties(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise bad_option(
            "BAD_OPTION", f"{path} cannot be read: {type(error).__name__}.", "Name a text file with Kafka's settings."
        ) from None
    return {PREFIX + name.removeprefix(PREFIX): value for name, value in found.items()}


def needed_brokers(servers: str | None, config: Path | None) -> Brokers:
    """
    The brokers, for a command that cannot do without them.

    :raises ConfigurationError: NO_BROKERS, or what is wrong with the settings.
    """
    found = brokers(servers, kafka_options(config) if servers else None)
    if found is None:
        raise bad_option("NO_BROKERS", "No Kafka brokers are named.", "Give --bootstrap-servers host:port,...")
    return found


def parse_properties(lines: Iterable[str]) -> dict[str, str]:
    """
    The settings in a file of ``name=value`` lines, such as Kafka's own tools take as ``--command-config``.

    A line that ends with a backslash goes on in the next one; lines that begin with ``#`` or ``!`` say nothing.

    :raises ConfigurationError: BAD_OPTION, with the number of a line that has no value, but not its text.
    """
    found: dict[str, str] = {}
    before = ""
    for number, line in enumerate(lines, start=1):
        text = before + line.strip()
        if text.startswith(("#", "!")) or not text:
            continue
        if text.endswith("\\"):
            before = text[:-1]
            continue
        before = ""
        name, separator, value = text.partition("=")
        if not separator:
            raise bad_option("BAD_OPTION", f"Line {number} of the Kafka settings has no value.", "Write name=value.")
        found[name.strip().lower()] = value.strip()
    return found
