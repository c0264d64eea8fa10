"""
The command ``pgonce watch``: look once, then open the screen.

Runs in a terminal, without Spark. Invariant: what would fail at once (a url that cannot work, a ledger that is not
there, no terminal) is said as every command says it, and no screen opens.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from pgonce.offsets_store.errors import NotInstalledError, PgonceError
from pgonce.offsets_store.log_lines import scrub

from ..doctor import doctor_says
from ..serve import database_of
from ..terms import Url
from .lines import Marks, is_ascii_only
from .poller import Reader

_NOTHING = "Nothing was read or written."


def watch(
    *,
    url: Url = "",
    every: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks at the ledger.")] = 2,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw with ASCII only; so it is without a locale that has UTF-8.")
    ] = False,
) -> None:
    """Keep one screen open: what every query is doing, with the last hour, its lag, and what needs attention."""
    try:
        from .screen import WatchApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise NotInstalledError(
            "NO_TEXTUAL",
            "`pgonce watch` draws its screen with Textual, which is not installed here.",
            _NOTHING,
            "pip install 'pgonce[watch]'; or use `pgonce status --watch`, which needs nothing more.",
        ) from error
    # Textual draws on stderr.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise typer.BadParameter(
            "it needs a terminal. For a file or a program there is `pgonce status --json`, and `pgonce health` with an "
            "exit code."
        )
    reader = Reader(url)
    first = reader.look()
    marks = Marks(ascii_only=ascii_only or is_ascii_only())
    app = WatchApp(reader, first, place=database_of(url), every=every, examine=partial(doctor_of, url), marks=marks)
    # Without the mouse: a person selects text with it, such as an id, as in any other program.
    app.run(mouse=False)


def doctor_of(url: str, query_id: str, sink_name: str | None) -> list[str]:
    """What ``pgonce doctor`` says of this query; where the checkpoint cannot be read from here, what to type there."""
    try:
        return doctor_says(query_id, url, sink_name)
    except PgonceError as error:
        return str(error).splitlines()
    # The screen goes on, whatever is wrong with the place of a checkpoint.
    except Exception as error:  # noqa: BLE001
        return [scrub(f"{type(error).__name__}: {error}")]
