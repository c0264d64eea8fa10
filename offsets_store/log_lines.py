"""
Keep each line of pgonce's log one line, and say when it was written if nobody has configured logging.

Runs in every process that imports pgonce. Invariant: no handler and no level is set. If the user's process has a
handler, the user decides how a line looks. Whatever a name or a message of somebody else holds, it begins no line of
its own, and makes no terminal obey.

Without a handler, as in Spark's Python workers, Python writes only the text of a warning to stderr.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone

from .shown import one_line

LOGGERS = ("pgonce", "pgonce.staging", "pgonce.receiver")


def keep_lines_whole() -> None:
    """Escape what is not of the line, and put the time, in timezone.utc, before lines that have no handler."""
    for name in LOGGERS:
        # A filter of a logger does not see the lines of the loggers below it.
        logging.getLogger(name).addFilter(_one_line)
        logging.getLogger(name).addFilter(_dated)


def _one_line(record: logging.LogRecord) -> bool:
    # The arguments, because the message itself is ours. Numbers stay what they are.
    if isinstance(record.args, tuple):
        record.args = tuple(one_line(str(arg)) if _has_text(arg) else arg for arg in record.args)
    return True


def _has_text(arg: object) -> bool:
    return not isinstance(arg, (int, float)) and not str(arg).isprintable()


def _dated(record: logging.LogRecord) -> bool:
    if not logging.getLogger(record.name).hasHandlers():
        at = (
            datetime.fromtimestamp(record.created, timezone.utc)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        record.msg = f"{at} {record.msg}"
    return True
