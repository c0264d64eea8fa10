"""
Show text that came from outside in one line: in a terminal, in an error, and in pgonce's log.

Runs in every process that imports pgonce. Invariants: nothing in the text makes a terminal obey or hide anything, and
a name can forge neither a line of an answer nor one of a log. No handler and no level is set; if the user's process has
a handler, the user decides how a line looks. Without a handler, as in Spark's Python workers, Python writes only the
text of a warning to stderr, so the time is put before it.
"""

from __future__ import annotations

import logging
import re
from datetime import datetime, timezone

_PASSWORDS = (
    re.compile(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.|'')*'|[^\s&'\"]+)"),
    re.compile(r"(?i)(postgres(?:ql)?://[^:/@\s]*:)\S*(?=@)"),
)


def scrub(text: str) -> str:
    """``text`` without the passwords of connection strings in it."""
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***", text)
    return text


def one_line(text: str) -> str:
    """``text`` with escapes for what ends a line, what a terminal obeys, and marks that turn text around."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


LOGGERS = ("pgonce", "pgonce.staging", "pgonce.receiver")


def keep_lines_whole() -> None:
    """Escape what could end or forge a line, and put the time (UTC) before lines that have no handler."""
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
