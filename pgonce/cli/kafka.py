"""
The options that name Kafka brokers.

Runs in a shell, without Spark. Invariant: passwords stand in a file, never on the command line, where all users of a
machine see them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pgonce.offsets_store.errors import bad_option, needing
from pgonce.offsets_store.kafka.settings import PREFIX
from pgonce.offsets_store.status.ends import Status
from pgonce.offsets_store.status.measure import Measured

Servers = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="Kafka brokers (host:port,...) to ask."),
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

    :raises ConfigurationError: BAD_OPTION, for a file that cannot be read; NOT_INSTALLED.
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


def with_measured(found: Sequence[Status], measured: Sequence[Measured]) -> list[Status]:
    """The same, with the partitions as brokers told them."""
    told = {(one.total.query_id, one.total.sink_name): list(one.partitions) for one in measured}
    return [(writer, told.get((writer.query_id, writer.sink_name), lag)) for writer, lag in found]


def parse_properties(text: str) -> dict[str, str]:
    """
    The settings in the text of a Java properties file, such as Kafka's own tools take as ``--command-config``.

    :raises ConfigurationError: BAD_OPTION, with the number of a line that is not a setting, but not its text;
        NOT_INSTALLED.
    :raises ValueError: for a malformed Unicode escape; its text repeats a piece of the input.
    """
    with needing("kafka", "Reading a file of Kafka's settings"):
        import javaproperties
    found: dict[str, str] = {}
    number = 1
    for part in javaproperties.parse(text):
        if isinstance(part, javaproperties.KeyValue):
            # A line that does not begin with such a name may be the rest of a password.
            if not _NAME.fullmatch(part.key):
                raise bad_option(
                    "BAD_OPTION",
                    f"Line {number} of the Kafka settings has no setting that can be used here.",
                    "Write name=value, with the names in page `options` of the documentation. A value goes on in the "
                    "next line if its line ends with a backslash.",
                )
            found[part.key.lower()] = part.value
        number += part.source.count("\n")
    return found
