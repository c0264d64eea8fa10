"""
Translate Postgres's refusals of a batch's rows or tables into errors with a remedy.

Pure: runs in the commit. Invariant: every SQLSTATE about which a user can do something has a code and a remedy of its
own. The transaction was rolled back in every case.
"""

from __future__ import annotations

import psycopg

from ..errors import PgonceError, TargetError
from ..log_lines import scrub
from .translate import PRIMARY_NEEDED, ledger_error, without_values

# SQLSTATE (or its class): code, and what to do.
REMEDIES = {
    "42501": ("TARGET_NOT_PERMITTED", "Grant what the text names: USAGE on the schema (CREATE for createTable); INSERT "
              "on the table (for upserts also SELECT and UPDATE, for complete mode DELETE); USAGE on the sequence of a "
              "serial column; TEMPORARY on the database. "
              "Where a policy of row-level security refused a row, change the policy, or filter such rows."),
    "23502": ("NOT_NULL_VIOLATION", "Fill the column in Spark, or drop the constraint."),
    "23505": ("UNIQUE_VIOLATION", "Remove such rows in Spark, or write with mode=upsert and this constraint's columns "
              "as keys. With mode=upsert and onConflict=ignoreAny, such rows are left out. Rows exchange their values "
              "only if the constraint is DEFERRABLE INITIALLY DEFERRED."),
    "23514": ("CHECK_VIOLATION", "Filter or repair the rows in Spark, or drop the constraint."),
    "23503": ("FOREIGN_KEY_VIOLATION", "First load the rows that these rows refer to, or drop the constraint. "
              "mode=complete cannot replace rows to which others still refer: use upsert."),
    "23001": ("FOREIGN_KEY_VIOLATION", "Delete the rows first that refer to these rows, or drop the constraint."),
    "23P01": ("EXCLUSION_VIOLATION", "Filter the rows that overlap, drop the constraint, or leave such rows out with "
              "mode=upsert and onConflict=ignoreAny."),
    "3F000": ("TARGET_MISSING", "Create the schema, or correct the name."),
    "42P10": ("NO_UNIQUE_KEY", "Create a unique constraint or index on exactly the key columns: without WHERE, and not "
              "on expressions."),
    "25P02": ("STATEMENT_FAILED", "A statement failed, and the function caught its error: let the error out of the "
              "function, or run the statement in tx.connection.begin_nested()."),
    "25006": ("READ_ONLY", PRIMARY_NEEDED),
    "42P01": ("TARGET_MISSING", "Create the table, or correct its name."),
    "53100": ("DISK_FULL", "Make room on the server's disk."),
    "54011": ("TOO_MANY_COLUMNS", "Combine some columns, for example in a struct, which becomes jsonb."),
    "54000": ("ROW_TOO_LARGE", "A value has at most 1 GB, and a text inside jsonb 256 MB: store larger values "
                               "elsewhere and write a reference to them. A row must fit on a page of 8 kB, without "
                               "its long texts, and an index entry on a third of a page: shorten the value, take it "
                               "out of the index, or combine columns, for example in a struct."),
    "57014": ("CANCELLED", "The statement was cancelled (pg_cancel_backend), or a timeout that the function "
              "had set ended it: find out which, and why."),
    psycopg.errors.RaiseException.sqlstate: (
        "TARGET_FAILED", "A trigger or a function in the database raised this error: remove the cause that its "
                         "message names."),
    "2200H": ("SEQUENCE_EXHAUSTED", "The sequence of a column's default has reached its end: make both bigint, with "
                                    "ALTER SEQUENCE and ALTER TABLE."),
    "22P05": ("VALUE_NOT_STORABLE", "The database's encoding does not have this character, or JSON has \\u0000, which "
              "jsonb cannot store: replace it in Spark, or use a database in UTF8."),
    "22021": ("VALUE_NOT_STORABLE", "Postgres cannot store a NUL character in a text: remove it in Spark, for "
                                    "example with translate(column, '\\0', '')."),
    "22": ("VALUE_NOT_STORABLE", "Repair the value in Spark, or widen the column (page `types` of the documentation)."),
}  # fmt: skip

UPDATES_A_ROW_TWICE = ("ExecOnConflictUpdate", "ExecOnConflictLockRow")
"""Which function of Postgres refuses two rows with one key in an upsert: the one of releases up to 18, and of 19."""

# What an SQLSTATE means if this function of Postgres raised it. (Its message may be in any language.)
_REMEDIES_BY_ORIGIN = {
    ("23514", "ExecFindPartition"): (
        "NO_PARTITION", "Create a partition for such rows, or a DEFAULT partition, or filter them in Spark."),
    ("55000", "CheckCmdReplicaIdentity"): (
        "NO_REPLICA_IDENTITY", "A publication (logical replication) sends the table's changes, and has to identify "
        "the old rows: give the table a primary key, or ALTER TABLE ... REPLICA IDENTITY USING INDEX (or FULL), or "
        "exclude updates and deletes from the publication."),
    ("42P10", "CheckCmdReplicaIdentity"): (
        "NO_REPLICA_IDENTITY", "A publication (logical replication) of the table has a row filter, or a list of "
        "columns, that needs a column (or leaves out one) of the replica identity: change either, or exclude updates "
        "and deletes from the publication."),
    ("55000", "ExecCheckIndexConstraints"): (
        "NO_UNIQUE_KEY", "Make the constraint NOT DEFERRABLE: ON CONFLICT cannot use a deferrable one."),
    **dict.fromkeys((("21000", function) for function in UPDATES_A_ROW_TWICE), (
        "DOUBLED_KEYS", "Set orderBy to the column that tells the newest row of a key, or deduplicate in Spark.")),
}  # fmt: skip
_LONGEST_MESSAGE = 1000
_UNKNOWN = ("TARGET_FAILED", "Look the SQLSTATE up in Postgres's manual and remove its cause.")


def target_error(error: psycopg.Error, what: str = "the batch", again: str = "start the query again") -> PgonceError:
    """
    The error for what Postgres refused while a batch was published, with Postgres's text but without passwords.

    :param what: what Postgres refused, for the sentence.
    :param again: what to do once the cause is removed.
    """
    sqlstate = error.sqlstate or _sqlstate_of_client(error)
    if sqlstate is None or error.diag.schema_name == "pgonce":
        if error.diag.constraint_name == "last_batch_is_recorded":
            return TargetError.usual(
                "TRANSACTION_ENDED",
                "SQL inside the function issued COMMIT (or SET CONSTRAINTS ALL IMMEDIATE) before the batch was "
                "recorded; the ledger's deferred constraint refused it.",
                "Remove transaction control from your SQL; with SET CONSTRAINTS, name the constraints that you want "
                "checked at once.",
            )
        return ledger_error(error, "committing a batch")
    code, remedy = (
        _REMEDIES_BY_ORIGIN.get((sqlstate, error.diag.source_function or ""))
        or REMEDIES.get(sqlstate)
        or REMEDIES.get(sqlstate[:2], _UNKNOWN)
    )
    remedy = vars(error).get(_REMEDY, remedy)
    refused = TargetError.usual(code, _sentence(error, what), f"{remedy} Then {again}.")
    refused.kept = f"Postgres refused {what} with {without_values(error)}."
    return refused


def _sqlstate_of_client(error: psycopg.Error) -> str | None:
    # psycopg itself refuses what it cannot send: a NUL (DataError), or parameters that do not fit the placeholders.
    if isinstance(error, psycopg.DataError):
        return "22021"
    return "42601" if isinstance(error, (psycopg.ProgrammingError, psycopg.NotSupportedError)) else None


def shortened(message: str) -> str:
    """Postgres's text without the end of a long value: Postgres repeats the whole text that a type does not take."""
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."


def add_note(error: psycopg.Error, note: str) -> None:
    """Add a sentence to what an error says, as ``BaseException.add_note`` does from Python 3.11 on."""
    vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), note]


_REMEDY = "pgonce_remedy"


def set_remedy(error: psycopg.Error, remedy: str) -> None:
    """Say what to do about this error, in place of what its SQLSTATE tells to do."""
    vars(error)[_REMEDY] = remedy


def _sentence(error: psycopg.Error, what: str) -> str:
    diag = error.diag
    if error.sqlstate is None:
        return scrub(f"A statement could not be sent to Postgres: {' '.join(str(error).split()).rstrip('.')}.")
    parts = [f"Postgres refused {what} (SQLSTATE {error.sqlstate}): {shortened(diag.message_primary or '')}"]
    # "Failing row contains ..." would put a whole row into logs; a key says enough.
    if diag.message_detail and diag.message_detail.startswith("Key "):
        parts.append(f"Detail: {diag.message_detail}")
    notes = getattr(error, "__notes__", ())
    parts.extend(notes)
    # The context of malformed JSON is the JSON itself.
    where = diag.context.splitlines()[0] if diag.context and diag.source_file != "jsonfuncs.c" else ""
    # Notes, if there are any, tell better than the context of our COPY or INSERT which value it was.
    if where and not (notes and where.startswith(("COPY ", 'SQL statement "INSERT INTO '))):
        parts.append(f"Where: {shortened(where)}")
    return scrub(". ".join(" ".join(part.split()).rstrip(".") for part in parts)) + "."
