"""
Answer each path: the list, one query, metrics and health; and the server that listens for them.

Runs in ``pgonce serve``. Invariants: whatever Postgres and Kafka do, there is an answer, from what was seen last. All
text in a page is escaped by the templates. What asks nothing of Postgres waits for no thread; only the list, which
takes long to make, is made in one. An open page asks every few seconds for the part of it that is live.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.writers import is_meant
from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.status.details import QueryDetails
from pgonce.offsets_store.status.figures import age_text, duration_text, rate_text
from pgonce.offsets_store.status.states import QueryState, name_of, tone_of

from . import health, metrics, pages
from .charts import charts_of, number
from .lag import PartitionLags
from .reader import Reader
from .security import Guard

_PAGE = Path(__file__).parent / "page"
# The page's script asks for the part that is live by this header.
PART = "x-pgonce-part"
_KEPT_LISTS = 64
_MOST_CONNECTIONS = 400


@dataclass(frozen=True)
class Settings:
    """
    How it is served.

    ``names`` are the host names under which it is reached, next to addresses and localhost. ``root_path`` is the path
    under which a proxy shows it. ``with_rows`` tells whether the rows of dead letters are shown. ``explained``
    gives the meaning and the remedy of an error's code, if it has an entry.
    """

    database: str
    names: tuple[str, ...] = ()
    root_path: str = ""
    with_rows: bool = True
    explained: Callable[[str], tuple[str, str] | None] = lambda _: None


def application(reader: Reader, settings: Settings, lag: PartitionLags) -> ASGIApp:
    """The ASGI application. The reader and the lag look while it runs."""
    site = _Site(reader, settings, lag)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        lag.start()
        reader.start()
        yield
        lag.stop()
        reader.stop()

    inside = Starlette(
        routes=[
            Route("/", site.list_page),
            Route("/queries/{query_id:path}", site.query_page),
            Route("/metrics", site.metrics),
            Route("/healthz", site.healthz),
            Mount("/page", StaticFiles(directory=_PAGE / "static")),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)],
        exception_handlers={404: site.not_found},
        lifespan=lifespan,
    )
    # Around all of it, so that an answer to an error of ours has the headers too.
    return Guard(inside, settings.names)


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End within seconds."""
        await super().shutdown(sockets)
        # A client that does not take its answer is waited for without end, although its task was cancelled.
        for line in list(self.server_state.connections):
            line.transport.abort()


def server(app: ASGIApp, **where: Any) -> uvicorn.Server:
    """
    What serves this application until it is told to end.

    :param where: uvicorn's settings that say where: ``host`` and ``port``, or ``uds``; and ``root_path``.
    """
    return _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
            **where,
        )
    )


class _Site:
    def __init__(self, reader: Reader, settings: Settings, lag: PartitionLags) -> None:
        self._reader = reader
        self._settings = settings
        self._lag = lag
        self._lists: tuple[int, dict[tuple[str, pages.View], str]] = (-1, {})
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_PAGE),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shown = (
            number, rate_text, duration_text, age_text, pages.since, pages.clock, pages.marked, pages.lag_was,
            pages.course, name_of, tone_of, in_command,
        )  # fmt: skip
        self._templates.filters.update({function.__name__: function for function in shown})
        self._templates.globals.update(
            root=settings.root_path,
            database=settings.database,
            version=version("pgonce"),
            query_link=pages.query_link,
            explained=settings.explained,
        )

    def _page(self, request: Request, name: str, status: int = 200, **context: Any) -> Response:
        return HTMLResponse(self._rendered(_part_of(request, name), **context), status, {"vary": PART})

    def _rendered(self, name: str, **context: Any) -> str:
        snapshot, now = self._reader.snapshot, datetime.now(timezone.utc)
        return self._templates.get_template(name).render(
            {"snapshot": snapshot, "now": now, "every": self._reader.every, **context}
        )

    def list_page(self, request: Request) -> Response:
        """All queries, or those that the query string asks for."""
        asked, snapshot = request.query_params, self._reader.snapshot
        view = pages.view_of(asked.get("q", ""), asked.getlist("state"), asked.get("sort", ""))
        name = _part_of(request, "list.html")
        # Ten people who look at the same list have it rendered once.
        revision, lists = self._lists
        if revision != snapshot.revision or len(lists) >= _KEPT_LISTS:
            self._lists = revision, lists = snapshot.revision, {}
        text = lists.get((name, view))
        if text is None:
            text = lists[name, view] = self._rendered(
                name,
                snapshot=snapshot,
                view=view,
                shown=pages.queries_of(snapshot, view),
                chips=pages.chips_of(snapshot, view),
                findings=pages.findings_of(snapshot, view),
            )
        return HTMLResponse(text, headers={"vary": PART})

    async def query_page(self, request: Request) -> Response:
        """One query and sink."""
        asked, snapshot = request.query_params, self._reader.snapshot
        state = self._state(request.path_params["query_id"], asked.get("sink"))
        if state is None:
            return self._page(request, "missing.html", 404, what="No query has this id in the ledger.")
        if "sink" not in asked and state.sink_name is not None:
            return RedirectResponse(self._settings.root_path + pages.query_link(state.query_id, state.sink_name), 302)
        code = asked.get("code") or None
        found, trouble = None, None
        try:
            found = await self._read(state, code)
        except PgonceError as error:
            trouble = error
        lag = snapshot.lag_by_minute.get((state.query_id, state.sink_name or ""), ())
        return await run_in_threadpool(
            self._page,
            request,
            "query.html",
            503 if trouble else 200,
            state=state,
            others=[one for one in snapshot.states if one.query_id == state.query_id and one != state],
            found=found,
            trouble=trouble,
            charts=charts_of(found.batches, lag) if found else [],
            says=pages.ledger_says(found, state) if found else [],
            code=code,
            with_rows=self._settings.with_rows,
        )

    async def _read(self, state: QueryState, code: str | None) -> QueryDetails:
        found = await self._reader.query(state.query_id, state.sink_name, code)
        # What the brokers told is newer than what the listener heard, and is there without one.
        rows = self._lag.rows_of(state.query_id, state.sink_name)
        return replace(found, partitions=rows) if rows else found

    def _state(self, query_id: str, sink: str | None) -> QueryState | None:
        snapshot = self._reader.snapshot
        found = snapshot.state_of(query_id, sink)
        meant = {state.query_id for state in snapshot.states if is_meant(query_id, state.query_id, state.query_name)}
        return snapshot.state_of(meant.pop(), sink) if found is None and len(meant) == 1 else found

    async def metrics(self, _: Request) -> Response:
        """Prometheus's text."""
        found = metrics.text(self._reader.snapshot, self._lag.partitions())
        return Response(found, headers={"content-type": metrics.CONTENT_TYPE})

    async def healthz(self, request: Request) -> Response:
        """One line, with 200 if the ledger is being read and 503 if not."""
        if request.query_params:
            return PlainTextResponse("This takes no parameters: `pgonce health QUERY` judges a query.\n", 400)
        found = health.of_process(self._reader.snapshot, datetime.now(timezone.utc), self._reader.every)
        return PlainTextResponse(found.line + "\n", 200 if found.is_well else 503)

    def not_found(self, request: Request, _: Exception) -> Response:
        """There is no such path."""
        return self._page(request, "missing.html", 404, what="There is no such page.")


def _part_of(request: Request, name: str) -> str:
    """The template of a page, or that of its live part alone, if the page's script asks."""
    return f"_{name}" if request.headers.get(PART) else name
