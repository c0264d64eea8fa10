"""
Show text that came from outside in one line: in a terminal, in an error, in a command, and in pgonce's log.

Runs in every process that imports pgonce. Invariants: nothing in the text makes a terminal obey or hide anything, and
a name can forge neither a line of an answer nor one of a log. A handler and a level are set only if PGONCE_LOG asks for
them; if the user's process has a handler, the user decides how a line looks. Without a handler, as in Spark's Python
workers, Python writes only the text of a warning to stderr, so the time is put before it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
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


_FORMS = {
    "QUERY": re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
    "CODE": re.compile(r"[A-Z0-9_]+"),
}
_WORD = re.compile("[^-].*")


def in_command(text: str | None, means: str) -> str:
    """
    ``text`` as a word of a command that people copy, or ``means`` in its place, where it is no such word.

    A role that may write to the ledger has chosen the text: it may be a command, an option, or another query's name.

    >>> in_command("x; reboot", "QUERY"), in_command("/a b", "CHECKPOINT"), in_command("--yes", "CHECKPOINT")
    ('QUERY', "'/a b'", 'CHECKPOINT')
    """
    form = _FORMS.get(means, _WORD)
    return shlex.quote(text) if text and text.isprintable() and form.fullmatch(text) else means


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
        record.msg = f"{_time_of(record)} {record.msg}"
    return True


def _time_of(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_to_stderr() -> None:
    """
    Write the log to stderr if the environment variable PGONCE_LOG says ``info``, ``debug`` or ``json``.

    For processes that the user cannot configure, such as Spark's Python workers.
    """
    asked = os.environ.get("PGONCE_LOG", "").strip().lower()
    if not asked:
        return
    logger = logging.getLogger("pgonce")
    if asked not in _LEVELS:
        logger.warning("PGONCE_LOG=%s has no meaning: it may be %s", asked, ", ".join(_LEVELS))
        return
    handler = _WhereThereIsNoOther()
    handler.setFormatter(_Json() if asked == "json" else _Text())
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(_LEVELS[asked])


_LEVELS = {"info": logging.INFO, "debug": logging.DEBUG, "json": logging.INFO}


class _WhereThereIsNoOther(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, as long as no handler of the user's gets the line."""

    def emit(self, record: logging.LogRecord) -> None:
        # Asked for each line, because the user may configure logging after the import.
        ours = logging.getLogger("pgonce")
        if ours.handlers == [self] and not (ours.propagate and logging.getLogger().handlers):
            super().emit(record)


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002
        return _time_of(record)


# What every record has. What else stands in one was given by its caller, or by who collects lines.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _USUAL},
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)
