"""
Listen for browsers and programs, so that none of them keeps the others out.

Runs in ``pgonce serve``. Invariant: a client that does not send its whole request, or does not take its answer, within
some seconds is let go. If many do so at a time, those that have taken longest are let go at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .reader import Reader

_MOST_CONNECTIONS = 400
# Most shells let a process open 1024 files, and some only 256.
_MOST_WAITED_FOR = 100
_PATIENCE_SECONDS = 10.0


class Server(uvicorn.Server):
    """
    Serves an application of :func:`pgonce.serve.app.application` until it is told to end.

    :param where: uvicorn's settings that say where: ``host`` and ``port``, or ``uds``; and ``root_path``.
    """

    def __init__(self, app: ASGIApp, reader: Reader, **where: Any) -> None:
        let_go = self._let_go

        class Line(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                let_go()

        super().__init__(
            uvicorn.Config(
                app,
                http=Line,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_CONNECTIONS,
                # So many are accepted before any of them is looked at.
                backlog=_MOST_WAITED_FOR,
                timeout_graceful_shutdown=2,
                **where,
            )
        )
        self._reader = reader
        self._waited_for: dict[tuple[Any, Any], float] = {}

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End. Pages that listen for events would keep the server for as long as it lets them."""
        self._reader.end()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """What is done ten times a second."""
        self._let_go()
        return await super().on_tick(counter)

    def _let_go(self) -> None:
        # Uvicorn has a limit of time for the next request alone, which ends with that request's first byte.
        now, known, self._waited_for = time.monotonic(), self._waited_for, {}
        lines: Iterable[Any] = self.server_state.connections
        for line in lines:
            cycle = line.cycle
            if cycle is None or cycle.more_body or cycle.response_complete or line.flow.write_paused:
                self._waited_for[line, cycle] = known.get((line, cycle), now)
        too_many = len(self._waited_for) - _MOST_WAITED_FOR
        longest_first = sorted(self._waited_for.items(), key=lambda each: each[1])
        for place, ((line, _), since) in enumerate(longest_first):
            if place < too_many or now - since > _PATIENCE_SECONDS:
                line.transport.abort()
