"""
How does a person name Kafka brokers on the command line, and say how to log in to them?

Runs in a shell. Invariant: passwords stand in a file, never on the command line, where all users of a machine see them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from pgonce.offsets_store.errors import UNCHANGED, ConfigurationError, bad_option
from pgonce.offsets_store.kafka.settings import PREFIX, Brokers, brokers

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

# All of Kafka's settings that can be used here have such a name.
_NAME = re.compile(r"[A-Za-z]+(\.[A-Za-z]+)+")


def kafka_options(path: Path | None) -> dict[str, str]:
    """
    The settings in a file, by their names in Spark.

    :raises ConfigurationError: BAD_OPTION, for a file that cannot be read; NO_KAFKA_CLIENT.
    """
    if path is None:
        return {}
    try:
        found = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise bad_option(
            "BAD_OPTION",
            f"{path} cannot be read: {type(error).__name__}.",
            "Name a Java properties file with Kafka's settings, in ASCII or UTF-8.",
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


def parse_properties(text: str) -> dict[str, str]:
    """
    The settings in the text of a Java properties file, such as Kafka's own tools take as ``--command-config``.

    :raises ConfigurationError: BAD_OPTION, with the number of a line that is no setting, but not its text;
        NO_KAFKA_CLIENT.
    :raises ValueError: for a Unicode escape that is none; its words repeat a piece of the text.
    """
    try:
        import javaproperties
    except ImportError as error:
        raise ConfigurationError(
            "NO_KAFKA_CLIENT",
            "Reading a file of Kafka's settings needs the package javaproperties, which is not installed here.",
            UNCHANGED,
            "Install it (pip install 'pgonce[kafka]'), or leave out the file.",
        ) from error
    found: dict[str, str] = {}
    number = 1
    for part in javaproperties.parse(text):
        if isinstance(part, javaproperties.KeyValue):
            # A line that does not begin with such a name may be the rest of a password.
            if not _NAME.fullmatch(part.key):
                raise bad_option(
                    "BAD_OPTION",
                    f"Line {number} of the Kafka settings names none that can be used here.",
                    "Write name=value, with the names of `pgonce explain offsets-for-others`. A value goes on in the "
                    "next line if its line ends with a backslash.",
                )
            found[part.key.lower()] = part.value
        number += part.source.count("\n")
    return found
