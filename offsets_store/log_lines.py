"""
When was a line of the log written, if nobody has configured logging?

Runs in every process that imports pgonce. Invariant: no handler and no level is set. If the user's process has a
handler, the user decides how a line looks, and it stays as it is.

Without a handler, as in Spark's Python workers, Python writes only the text of a warning to stderr.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone

LOGGERS = ("pgonce", "pgonce.staging", "pgonce.receiver")


def date_lines_without_handler() -> None:
    """Put the time, in timezone.utc, before the lines of pgonce that have no handler."""
    for name in LOGGERS:
        # A filter of a logger does not see the lines of the loggers below it.
        logging.getLogger(name).addFilter(_dated)


def _dated(record: logging.LogRecord) -> bool:
    if not logging.getLogger(record.name).hasHandlers():
        at = (
            datetime.fromtimestamp(record.created, timezone.utc)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        record.msg = f"{at} {record.msg}"
    return True
