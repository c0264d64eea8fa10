"""
When was a line of the log written, where nobody has configured logging?

Runs in every process that imports pgonce. Invariant: no handler and no level is set, here or in the user's process:
where there is a handler, a line is the user's to lay out and stays as it is.

Without one, as in Spark's Python workers, Python writes the bare text of a warning to stderr.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

LOGGERS = ("pgonce", "pgonce.staging", "pgonce.receiver")


def date_lines_without_handler() -> None:
    """Put the time, in UTC, before lines of pgonce that no handler will lay out."""
    for name in LOGGERS:
        # A filter of a logger is not asked for the lines of those below it.
        logging.getLogger(name).addFilter(_dated)


def _dated(record: logging.LogRecord) -> bool:
    if not logging.getLogger(record.name).hasHandlers():
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record.msg = f"{at} {record.msg}"
    return True
