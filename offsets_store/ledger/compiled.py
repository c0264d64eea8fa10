"""
Make statements of the ledger's tables into the text that is sent.

Runs where the ledger is read or written. Invariant: SQLAlchemy makes each text once, and does not send it: that would
take twice as long, and wait for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import BindParameter, ClauseElement, Connection, bindparam
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from ..postgres.connect import driver_connection
from ..postgres.one_trip import Statement, ask

_DIALECT = PGDialect_psycopg(paramstyle="numeric_dollar")


class Compiled(Statement):
    """A statement of SQLAlchemy's, which is compiled when it is first sent; what has no value in it is to be given."""

    def __init__(self, of: ClauseElement, *, is_prepared: bool = True) -> None:
        self._of = of
        self.is_prepared = is_prepared

    @cached_property
    def _compiled(self) -> Any:
        # It casts each parameter to its type, except booleans.
        return self._of.compile(dialect=_DIALECT)

    @cached_property
    def text(self) -> bytes:  # type: ignore[override]
        """As SQLAlchemy makes it."""
        return str(self._compiled).encode()

    @cached_property
    def _places(self) -> list[tuple[str, BindParameter[Any], Callable[[Any], Any] | None]]:
        bound = {name: bound for bound, name in self._compiled.bind_names.items()}
        return [
            (name, bound[name], bound[name].type.dialect_impl(_DIALECT).bind_processor(_DIALECT))
            for name in self._compiled.positiontup or ()
        ]

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """The values of its parameters: those given, and those of the statement itself."""
        found = []
        for name, bound, process in self._places:
            value = given[name] if bound.required else bound.value
            # Such as a wrapper for JSON.
            found.append(process(value) if process else value)
        return found


def given(*names: str) -> dict[str, BindParameter[Any]]:
    """Parameters for the values of these columns: :func:`of_columns` gives them."""
    # Under names of our own: those of columns are SQLAlchemy's.
    return {name: bindparam(f"to_{name}") for name in names}


def of_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of columns, for the parameters of :func:`given`."""
    return {f"to_{name}": value for name, value in values.items()}


def send_once(connection: Connection, statement: ClauseElement) -> None:
    """Send a statement that is rarely sent, and whose answer says nothing; within a round trip, with the others."""
    ask(driver_connection(connection), Compiled(statement, is_prepared=False))
