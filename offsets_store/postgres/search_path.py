"""
Run our own statements under a search_path of ``pg_catalog`` alone, and under the other settings on which they rely.

Runs where Postgres is spoken to. Invariant: a statement of ours runs under :data:`SEARCH_PATH`, where other roles can
create nothing, or names the schema of every table, function, operator and type in it. A transaction of ours has all
settings (:data:`OURS`) while it reads or writes the ledger; a statement between statements of the user has those that
change what Postgres says of names (:data:`FOR_NAMES`), and after it the user's settings are back: if it fails, the
rollback brings them back. Rows are written into the user's tables under the user's own values, because triggers,
defaults and casts of these tables rely on them.

To qualify functions is not enough: an operator such as ``=``, and a type such as ``text``, are looked up along the
search_path too. And an unqualified function whose argument types fit better wins even if ``pg_catalog`` comes first.

A role, a database or ``url`` may set any of the settings that ``SELECT name FROM pg_settings WHERE context = 'user'``
lists. All were looked at, those of Postgres 14 to 19. What is not named here or below changes plans, resources or logs.

- Set where it matters, or asked for: ``synchronous_commit`` (a commit refuses ``off``), ``lock_timeout``,
  ``statement_timeout``, ``transaction_timeout``, ``idle_in_transaction_session_timeout``, ``application_name``,
  ``tcp_*``, ``client_encoding`` (in each connection's first message), ``transaction_isolation`` (each BEGIN says which:
  READ COMMITTED, or REPEATABLE READ to read the ledger), ``default_transaction_read_only`` (a commit fails, and
  ``pgonce check`` says so).
- Left to the user, who may see an error but no other value: ``row_security``, ``xmloption`` (a text that goes into a
  column of xml), ``exit_on_error``, ``idle_session_timeout``, ``restrict_nonsystem_relation_kind``,
  ``default_table_access_method``, ``default_tablespace`` and ``temp_tablespaces`` (for staging tables too).
- Without effect on what is sent or read: ``backslash_quote`` and ``escape_string_warning`` (no statement has a
  backslash before a quote), ``lc_monetary``, ``lc_numeric``, ``lc_time``, ``xmlbinary``, ``timezone_abbreviations``,
  ``default_text_search_config``, ``gin_fuzzy_search_limit``, ``client_min_messages``, ``check_function_bodies``,
  ``synchronize_seqscans``, ``password_encryption``, ``icu_validation_level``.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

SEARCH_PATH = "pg_catalog, pg_temp"
"""``pg_temp`` is named last, because Postgres looks there first if it is not named."""

FOR_NAMES = {
    "search_path": SEARCH_PATH,
    # format_type, regclass and quote_ident would put quotes around names that need none, and around types.
    "quote_all_identifiers": "off",
}

OF_VALUES = {
    # psycopg reads times in no other style.
    "DateStyle": "ISO, MDY",
    # "-1 0:00:01" is two values in two styles, so what one session has written another would read as another value.
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    # The least value that returns a float as it was.
    "extra_float_digits": "1",
    "array_nulls": "on",
    "transform_null_equals": "off",
}

OURS = {**FOR_NAMES, **OF_VALUES, "standard_conforming_strings": "on"}
"""
``standard_conforming_strings`` counts from the next text on, because Postgres splits a text into its statements before
it runs the first one. So a statement between the user's has no backslash in a literal, or writes it as E''.
"""


ANSWERS_BEFORE = 1
"""In :meth:`LocalSettings.around`, the SELECT that sets our values gives an answer before the statement does."""


def kept_in(name: str) -> str:
    """The setting, local to the transaction, that remembers the user's value of ``name`` while ours is in force."""
    return f"pgonce.users_{name}"


class LocalSettings:
    """
    Values of Postgres's settings for single statements, in one round trip with each.

    An outer and an inner one must not set the same: the inner one would remember our value as the user's.

    >>> LocalSettings(extra_float_digits="1").execute_in_tx(connection, sql.SQL("SELECT to_jsonb(2.5::float4)"))
    """

    def __init__(self, **values: str) -> None:
        entering, leaving = [], []
        for name, value in values.items():
            to_set = sql.SQL("pg_catalog.set_config({}, {}, true)")
            stored = sql.SQL("pg_catalog.current_setting({})")
            entering.append(to_set.format(kept_in(name), stored.format(name)))
            entering.append(to_set.format(name, value))
            leaving.append(to_set.format(name, stored.format(kept_in(name))))
        # Postgres computes what is selected from left to right: a value is remembered before ours takes its place.
        select = sql.SQL("SELECT {}")
        self.entering = sql.SQL(", ").join(entering)
        """What a SELECT has to compute, to remember the user's values and set ours."""
        self._enter = select.format(self.entering)
        self.leave = select.format(sql.SQL(", ").join(leaving))
        """The statement that sets the user's values again."""

    def around(self, statement: sql.Composable) -> sql.Composed:
        """
        The text that runs one statement under these settings, between statements of the user.

        Several statements in one text cannot be prepared, and take no parameters.
        """
        return sql.SQL("; ").join([self._enter, statement, self.leave])

    def execute_in_tx(self, connection: psycopg.Connection, statement: sql.Composable) -> psycopg.Cursor[Any]:
        """Run one statement under these settings; the cursor is at its answer."""
        cursor = connection.execute(self.around(statement), prepare=False)
        for _ in range(ANSWERS_BEFORE):
            cursor.nextset()
        return cursor


SET_OURS = "; ".join(
    f"SET LOCAL {name} = {value if name == 'search_path' else repr(value)}" for name, value in OURS.items()
)
"""For a transaction in which no name of the user has to be found."""

_OURS = LocalSettings(**OURS)
_FOR_NAMES = LocalSettings(**FOR_NAMES)
_FOR_NAMES_AND_VALUES = LocalSettings(**FOR_NAMES, **OF_VALUES)

ENTER_COLUMNS = _OURS.entering
"""What a SELECT computes to remember the user's settings and to put ours in force until :func:`leave_in_tx`."""


LEAVE = _OURS.leave
"""The statement of :func:`leave_in_tx`, for a text with others."""

# To compose it takes psycopg as long as Postgres needs to run it.
_LEAVE = LEAVE.as_string(None)


def leave_in_tx(connection: psycopg.Connection) -> None:
    """Set the user's search_path (and the rest) again: for the user's SQL, and before COMMIT for deferred triggers."""
    connection.execute(_LEAVE)


def under_ours(statement: sql.Composable) -> sql.Composed:
    """The text that runs one statement under our search_path, as :meth:`LocalSettings.around` does."""
    return _FOR_NAMES.around(statement)


def execute_in_tx(
    connection: psycopg.Connection, statement: sql.Composable, *, makes_texts: bool = False
) -> psycopg.Cursor[Any]:
    """
    Run one statement under our search_path, between statements of the user; the cursor has its rows.

    :param makes_texts: whether it makes texts or JSON of values, or reads values in them.
    """
    return (_FOR_NAMES_AND_VALUES if makes_texts else _FOR_NAMES).execute_in_tx(connection, statement)
