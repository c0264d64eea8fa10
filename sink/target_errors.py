"""
What Postgres says of rows and tables, in our words.

Pure; runs in the commit. Invariant: every SQLSTATE that a user can mend has its own code and way out; whatever it is,
the transaction was rolled back.
"""

from __future__ import annotations

import psycopg

from offsets_store.errors import NOTHING, PgonceError
from offsets_store.postgres_errors import ledger_error, scrub
from sink.errors import TargetError

_AFTERWARDS = "The query may be started again as it is: the batch is run again from its source."

# SQLSTATE (or its class): code, and what to do.
_REMEDIES = {
    "42501": ("TARGET_NOT_PERMITTED", "Grant USAGE on the schema, and INSERT (also SELECT and UPDATE, or DELETE)."),
    "23502": ("NOT_NULL_VIOLATION", "Fill the column in Spark, or drop the constraint."),
    "23505": ("UNIQUE_VIOLATION", "Remove doubled rows in Spark, or use mode=upsert with keys."),
    "23514": ("CHECK_VIOLATION", "Filter or mend the rows in Spark, or drop the constraint."),
    "23503": ("FOREIGN_KEY_VIOLATION", "Load the referenced rows first, or drop the constraint."),
    "23P01": ("EXCLUSION_VIOLATION", "Filter the rows that overlap, or drop the constraint."),
    "21000": ("DOUBLED_KEYS", "Set orderBy to the column that tells the newest row of a key, or deduplicate in Spark."),
    "42P10": ("NO_UNIQUE_KEY", "Create a unique constraint or index on exactly the key columns."),
    "25P02": ("STATEMENT_FAILED", "A statement failed and its error was swallowed: let it out of the function, or "
              "use tx.connection.begin_nested()."),
    "25006": ("READ_ONLY", "Point url at the primary (target_session_attrs=read-write with several hosts)."),
    "42P01": ("TARGET_MISSING", "Create the table, or correct its name."),
    "53100": ("DISK_FULL", "Make room on the server's disk."),
    "22021": ("VALUE_NOT_STORABLE", "Postgres text cannot hold a NUL character: remove it in Spark, for example with "
              "translate(column, '\\0', '')."),
    "22": ("VALUE_NOT_STORABLE", "Mend the value in Spark, or widen the column (docs/types.md)."),
}  # fmt: skip


def target_error(error: psycopg.Error) -> PgonceError:
    """The error for what Postgres refused while a batch was published; the cause's text is kept, scrubbed."""
    sqlstate = error.sqlstate or _sqlstate_of_client(error)
    if sqlstate is None or error.diag.schema_name == "pgonce":
        if error.diag.constraint_name == "last_batch_is_recorded":
            return _ended_by_user()
        return ledger_error(error, "committing a batch")
    code, remedy = _REMEDIES.get(sqlstate) or _REMEDIES.get(
        sqlstate[:2], ("TARGET_FAILED", "Look the SQLSTATE up in Postgres's manual and mend its cause.")
    )
    return TargetError(code, _sentence(error), NOTHING, f"{remedy} {_AFTERWARDS}")


def _sqlstate_of_client(error: psycopg.Error) -> str | None:
    # psycopg itself refuses what it cannot send: a NUL (DataError), or parameters that do not go with placeholders.
    if isinstance(error, psycopg.DataError):
        return "22021"
    return "42601" if isinstance(error, (psycopg.ProgrammingError, psycopg.NotSupportedError)) else None


def _sentence(error: psycopg.Error) -> str:
    diag = error.diag
    if error.sqlstate is None:
        return scrub(f"A statement could not be sent to Postgres: {' '.join(str(error).split()).rstrip('.')}.")
    parts = [f"Postgres refused the batch (SQLSTATE {error.sqlstate}): {diag.message_primary}"]
    # "Failing row contains ..." would put a whole row into logs; a key tells enough.
    if diag.message_detail and diag.message_detail.startswith("Key "):
        parts.append(f"Detail: {diag.message_detail}")
    if diag.context:
        # COPY's context names table, row and column: "COPY events, line 3, column name".
        parts.append(f"Where: {diag.context.splitlines()[0]}")
    return scrub(". ".join(" ".join(part.split()).rstrip(".") for part in parts)) + "."


def _ended_by_user() -> TargetError:
    return TargetError(
        "TRANSACTION_ENDED",
        "SQL inside the function issued COMMIT (or SET CONSTRAINTS ALL IMMEDIATE) before the batch was recorded; the "
        "ledger's deferred constraint refused it.",
        NOTHING,
        "Remove transaction control from your SQL; name the constraints that you want checked at once.",
    )
