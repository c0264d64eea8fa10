"""
Errors: one root, and a family for each part of a batch's way.

Runs anywhere. Invariant: the text of an error says what happened, what it means for the data, and what to do next,
because only the text survives the trip through Spark's JVM. It never contains a password.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import Self

from .log_lines import one_line, scrub

# What most errors mean for the data; all of them use the same words.
NOTHING = "Nothing of this batch was written, and the stored offsets have not moved."
NOTHING_OF_JOB = "Nothing of this job was written."
# What an error means for the data if no batch was to be written: a person asked a question, or gave a command.
UNCHANGED = "Nothing was changed."
NOTHING_CHANGED = "Nothing was changed, neither in the checkpoint nor in the ledger."
_BEFORE_A_BATCH = "Nothing was written."


class PgonceError(Exception):
    """
    The root of every error that pgonce raises.

    :param code: the stable name of the situation, as listed in docs/errors.md (``PGONCE_TOO_OLD``).
    :param what: what happened, as a sentence.
    :param data: what it means for the data (``Nothing was written.``), as a sentence.
    :param remedy: what to do next; may be several sentences.

    All four are positional arguments, so that the error can be unpickled on the other side of a Spark worker.
    ``kept`` says what happened without a value of any row, if ``what`` may show one; ``sink_name`` is the sink of the
    batch that failed, if it was known.
    """

    shows_no_values: ClassVar[bool] = False
    """Whether sentences of this family are made of options, names, ids, files and offsets, and never of rows."""
    means: ClassVar[str] = NOTHING
    """What most errors of this family mean for the data."""
    kept: str | None = None
    sink_name: str | None = None

    def __init__(self, code: str, what: str, data: str, remedy: str) -> None:
        # What happened often repeats what a user wrote, and a connection string can stand in any place by mistake.
        what = scrub(what)
        super().__init__(code, what, data, remedy)
        self.code = code
        self.what = what
        self.data = data
        self.remedy = remedy

    @classmethod
    def usual(cls, code: str, what: str, remedy: str) -> Self:
        """An error that means for the data what most errors of its family do."""
        return cls(code, what, cls.means, remedy)

    def beginning(self, where: str) -> Self:
        """The same error, with a sentence that begins by saying ``where`` it is."""
        return self.saying(f"{where}: {self.what}", self.data)

    def saying(self, what: str, data: str) -> Self:
        """The same error in other words: what happened, and what it means for the data."""
        error = type(self)(self.code, what, data, self.remedy)
        error.kept, error.sink_name = self.kept, self.sink_name
        return error

    def __str__(self) -> str:
        # One line, because it is logged by Spark too, and names in it may come from anywhere.
        return one_line(f"[{self.code}] {self.what} {self.data} Help: {self.remedy}")


@contextmanager
def said_of_a_job() -> Iterator[None]:
    """Let errors of the block say what they mean for a batch job, which has no stored offsets."""
    try:
        yield
    except PgonceError as error:
        if error.data != NOTHING:
            raise
        raise error.saying(error.what, NOTHING_OF_JOB) from error.__cause__


@dataclass(frozen=True)
class Said:
    """
    What an error of ours has said, as far as its text tells.

    ``sentences`` say what happened, and what it means for the data.
    """

    code: str
    sentences: str
    remedy: str


# A traceback has the class before the text; where Spark hides it, the text follows words of Spark.
_SAID = re.compile(r"\[([A-Z][A-Z0-9_]+)\] ((?:(?!\[[A-Z][A-Z0-9_]+\] ).)+?) Help: (.+)")
_SAID_BY_US = re.compile(rf"\bpgonce\.[\w.]+: {_SAID.pattern}")


def said_in(text: str) -> Said | None:
    """What an error of ours has said, if ``text`` (Spark's, of an error that ended a query) has it; else None."""
    found = _SAID_BY_US.search(text) or _SAID.search(text)
    return Said(found[1], found[2], found[3].strip()) if found else None


class ConfigurationError(PgonceError):
    """An option, an argument or a Spark setting that pgonce cannot work with."""

    shows_no_values = True
    means = _BEFORE_A_BATCH


class NotInstalledError(ConfigurationError):
    """A Python package that is needed for what was asked is not installed here."""


class ConnectError(PgonceError):
    """
    Postgres could not be reached, or refused the login.

    :param may_pass: whether the same may succeed later, without a change to what this process was told.
    """

    shows_no_values = True
    means = _BEFORE_A_BATCH

    def __init__(self, code: str, what: str, data: str, remedy: str, *, may_pass: bool = False) -> None:
        super().__init__(code, what, data, remedy)
        self.may_pass = may_pass


class CheckpointError(PgonceError):
    """Spark's checkpoint could not be read, or does not say what it must."""

    shows_no_values = True
    means = _BEFORE_A_BATCH


class NoCheckpointError(CheckpointError):
    """There is no checkpoint of a query at this location."""


class LedgerError(PgonceError):
    """The ledger (schema ``pgonce``) is missing, too new, or may not be written."""

    shows_no_values = True
    means = _BEFORE_A_BATCH


class NoLedgerError(LedgerError):
    """The database has no ledger yet."""


class OldLedgerError(LedgerError):
    """The ledger lacks a migration that this code needs."""


class OffsetsError(PgonceError):
    """The stored offsets cannot answer the question."""

    shows_no_values = True
    means = UNCHANGED


class NotFoundError(OffsetsError):
    """No query, sink or dead letter has the name or the id that was given, or several have."""


class BrokersError(OffsetsError):
    """Kafka's brokers could not be asked."""


class UnreachableBrokersError(BrokersError):
    """Kafka's brokers gave no answer. The same may succeed later."""


class RecoveryError(PgonceError):
    """A checkpoint that cannot be repaired from the ledger, or a command of a person that a writer does not allow."""

    shows_no_values = True
    means = NOTHING_CHANGED


class RunningQueryError(RecoveryError):
    """The query seems to run, or another session is recovering it."""


class UnknownQueryError(RecoveryError):
    """The ledger does not know the query of a checkpoint."""


class RefusedBatch(PgonceError):
    """A batch that must not be published; ``code`` is the verdict's name."""

    shows_no_values = True


class TargetError(PgonceError):
    """The target table cannot take the batch, or Postgres refused its rows."""


class NullKeyError(TargetError):
    """Rows of the batch have NULL in a key column."""


class NullOrderError(TargetError):
    """Rows of the batch have NULL in the column that orderBy names."""


class CommitError(PgonceError):
    """The batch could not be committed, for a reason outside its rows."""


class UnknownOutcomeError(CommitError):
    """The batch may have been committed, and the ledger could not be asked."""


def bad_option(code: str, what: str, remedy: str) -> ConfigurationError:
    """An error about an option. It is raised before any row has moved."""
    return ConfigurationError.usual(code, what, remedy)


def bad_target(code: str, what: str, remedy: str) -> TargetError:
    """An error about the table, or about rows for it. Its transaction is rolled back, so no row has been written."""
    return TargetError.usual(code, what, remedy)


def without_its_words(error: BaseException) -> str:
    """What kind of error it is and where it came from. Its words are left out, because they may show a row."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()


@contextmanager
def needing(extra: str, what_for: str) -> Iterator[None]:
    """
    Imports of what ``pgonce[extra]`` brings.

    :param what_for: the sentence goes on with "needs the package ..., which is not installed here".
    :raises ConfigurationError: NOT_INSTALLED.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "pgonce":
            raise
        what = f"{what_for} needs the package {package.replace('_', '-')}, which is not installed here."
        raise NotInstalledError(
            "NOT_INSTALLED", what, UNCHANGED, f"Install it: pip install 'pgonce[{extra}]'."
        ) from error
