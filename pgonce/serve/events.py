"""
Tell browsers that there is something new, by server-sent events.

Runs in ``pgonce serve``. Invariant: an event holds no text from outside, only what has changed and when; the browser
then asks for the part of its page that is live.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from .reader import Reader, Snapshot

_LOOK_SECONDS = 0.25
# Proxies close lines that are silent for a minute.
_SILENT_SECONDS = 15.0
_MOST_LISTENERS = 200


class Events:
    """The browsers that listen."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._listeners = 0

    def response(self) -> Response:
        """The stream for one browser."""
        if self._listeners >= _MOST_LISTENERS:
            return PlainTextResponse("Too many pages are open.\n", 503, {"retry-after": "30"})
        # A proxy must not collect events until it has enough of them.
        return StreamingResponse(self._messages(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _messages(self) -> AsyncIterator[str]:
        self._listeners += 1
        try:
            yield "retry: 2000\n\n"
            last, spoke_at = -1, time.monotonic()
            while not self._reader.is_stopped:
                snapshot = self._reader.snapshot
                if snapshot.revision != last:
                    last, spoke_at = snapshot.revision, time.monotonic()
                    yield f"event: look\nid: {last}\ndata: {json.dumps(_event(snapshot))}\n\n"
                elif time.monotonic() - spoke_at > _SILENT_SECONDS:
                    spoke_at = time.monotonic()
                    yield ": nothing new\n\n"
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._listeners -= 1


def _event(snapshot: Snapshot) -> dict[str, object]:
    counts = Counter(finding.severity for finding in snapshot.findings)
    return {
        "revision": snapshot.revision,
        "read_at": snapshot.at.isoformat() if snapshot.at else None,
        "unreadable_since": snapshot.trouble.since.isoformat() if snapshot.trouble else None,
        "critical": counts["critical"],
        "warnings": counts["warning"],
    }
