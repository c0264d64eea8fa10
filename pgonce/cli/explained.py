"""
``pgonce.explain``: what went wrong, what it means for the data, and what to type, without frames.

Runs where a user asks: on the driver, in a notebook, or without Spark. Invariant: what it says of a code is the text
of docs/errors.md, as the command ``pgonce explain`` shows it.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from pgonce.offsets_store.errors import PgonceError, Said, said_in

from .explain import entries, explanation, nearest, pages

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_WIDTH = 100


class Explanation(str):
    """A text of several lines, which a notebook and a Python prompt show as it reads."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def explain(what: StreamingQuery | BaseException | str) -> str:
    """
    What went wrong, what it means for the data, and what to type; a notebook shows the text as it reads.

    :param what: a query, whose exception is explained; an exception, of pgonce or one of Spark that has pgonce's text
        in it; the text of one; or a code, such as ``TYPE_MISMATCH``.
    """
    if isinstance(what, PgonceError):
        return _explained(Said(what.code, f"{what.what} {what.data}", what.remedy))
    if isinstance(what, BaseException):
        return _of_text(str(what), type(what).__name__)
    if isinstance(what, str):
        return _of_text(what) if said_in(what) else _of_name(what)
    return _of_query(what)


def _of_query(query: StreamingQuery) -> Explanation:
    error = query.exception()
    if error is not None:
        return _of_text(str(error), type(error).__name__)
    name = query.name or query.id
    if query.isActive:
        return Explanation(f"Query {name} runs, and nothing has gone wrong in this run.")
    return Explanation(f"Query {name} has ended without an error: it was stopped, or has read all there was.")


def _of_text(text: str, kind: str | None = None) -> Explanation:
    said = said_in(text)
    if said is not None:
        return _explained(said)
    first = next((line for line in text.splitlines() if line.strip()), kind or "")
    return Explanation(
        f"This is not an error of pgonce{f', but a {kind}' if kind else ''}: Spark or the query's own code raised "
        f"it.\n\n{_wrapped(first)}\n\nA batch that failed by it was not written: rows and offsets are committed "
        "together, or not at all."
    )


def _of_name(name: str) -> Explanation:
    found = explanation(name) if name.strip() else None
    if found is None:
        return Explanation(f"There is no {name!r}. There is {', '.join(nearest(name))}.")
    return Explanation(found)


def _explained(said: Said) -> Explanation:
    parts = [f"[{said.code}]", _wrapped(said.sentences), f"What to do:\n{_wrapped(said.remedy)}"]
    entry: Any = next((entry for entry in entries(pages()["errors"]) if entry.code == said.code), None)
    if entry is not None:
        parts[0] += f" {entry.section}"
        parts.append(f"What it means in general:\n{_wrapped(entry.meaning)}")
    parts.append(f"More: pgonce explain {said.code}")
    return Explanation("\n\n".join(parts))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
