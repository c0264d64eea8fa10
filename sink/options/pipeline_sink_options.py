"""
Are the options of a declarative pipeline's sink right, before the pipeline runs?

Pure: runs in the process of ``spark-pipelines``, while it reads the pipeline's files, and so in a dry run, too.
Invariant: it refuses what the sink itself would refuse at its first batch, in the same words, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from pgonce.offsets_store.errors import bad_option

from .sink_options import parse_options

# A pipeline gives every flow these two by itself.
_OF_THE_PIPELINE = ("checkpointLocation", "queryName")


def pipeline_sink_options(options: Mapping[str, str]) -> dict[str, str]:
    """
    Check the options of ``dp.create_sink(name, "pgonce", ...)``, and give them back as they are.

    Spark hands options to a sink only when a flow runs, so that a dry run does not notice a misspelt one.

    :raises ConfigurationError: as the sink does; for a name or a value that is not a string; for an option that is
        given twice, in other cases; and for checkpointLocation and queryName, which a pipeline gives to each of its
        flows.
    """
    if not isinstance(options, Mapping):
        raise bad_option(
            "BAD_OPTION",
            f"The options must be a dict, not {type(options).__name__}.",
            'Write them as in {"url": "", "table": "orders"}.',
        )
    spelled: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise bad_option(
                "BAD_OPTION",
                f"An option's name must be a string, not {type(name).__name__}.",
                "Write it in quotation marks.",
            )
        # Spark sends them in no order, and takes the one that comes last.
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise bad_option(
                "CLASHING_OPTIONS",
                f"{other} and {name} are the same option: upper and lower case do not matter.",
                "Keep one of them.",
            )
        if not isinstance(value, str):
            raise bad_option(
                "BAD_OPTION",
                f"The option {name} is no text, but {type(value).__name__}.",
                'Write it in quotation marks, as in {"createTable": "true"}: Spark takes nothing else.',
            )
        if name.lower() in map(str.lower, _OF_THE_PIPELINE):
            raise bad_option(
                "CLASHING_OPTIONS",
                f"{name} is set for a sink of a pipeline, where each flow has its own from the pipeline.",
                "Leave it out.",
            )
    parse_options({**options, "checkpointLocation": "/of-the-pipeline"}, overwrite=False)
    return dict(options)
