"""
Refuse requests that another site may have made, and all that would change something; tell browsers what a page may do.

Runs in ``pgonce serve``, around every answer. Invariants: a name is answered only if it was allowed, because a page of
another site can reach this process under a name of its own (DNS rebinding), but under no address; nothing is loaded
from elsewhere; no script and no style stands in the markup.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/@\s]+)(?::\d{1,5})?")


def is_allowed(host: str, names: Collection[str]) -> bool:
    """
    Whether a request with this ``Host`` is answered: an address, localhost, or one of ``names``.

    >>> is_allowed("127.0.0.1:9847", []), is_allowed("[::1]:9847", []), is_allowed("evil.example", ["shop.example"])
    (True, True, False)
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].lower().rstrip(".")
    if name == "localhost" or name in {each.lower().rstrip(".") for each in names}:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """
    Answers only requests to allowed hosts that read, and adds the headers to each answer.

    :param names: under which names the page is reached, in addition to addresses and localhost.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_allowed(hosts[0], self._names):
            return PlainTextResponse(
                "This name is not answered. Start pgonce serve with --allow-host NAME to allow it.\n", 421
            )
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "Only GET is answered: nothing can be changed here.\n", 405, {"allow": "GET, HEAD"}
            )
        return None
