"""
Refuse requests that another site may have made, tell browsers what a page may do, and know who may change something.

Runs in ``pgonce serve``, around every answer. Invariants: a name is answered only if it was allowed, because a page of
another site can reach this process under a name of its own (DNS rebinding), but under no address; nothing is loaded
from elsewhere; no script and no style stands in the markup. What changes something came from a page of this process,
which its own browser shows, and from a person who has proved who it is. No secret is ever shown or logged.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgonce.offsets_store.log_lines import one_line

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


def is_from_here(headers: Headers, names: Collection[str]) -> bool:
    """
    Whether a browser sent this from a page of this process: ``Origin`` is where it was sent to, or one of ``names``.

    >>> here = {"host": "10.1.2.3:9847", "origin": "http://10.1.2.3:9847"}
    >>> is_from_here(Headers(here), []), is_from_here(Headers({**here, "origin": "http://10.1.2.3"}), [])
    (True, False)
    """
    origins = headers.getlist("origin")
    if len(origins) != 1 or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    scheme, _, place = origins[0].lower().partition("://")
    found = _HOST.fullmatch(place)
    if scheme not in ("http", "https") or found is None:
        return False
    # A proxy may name itself or this process in Host; the browser names the proxy.
    return place == headers.get("host", "").lower() or found[1] in {name.lower() for name in names}


class Guard:
    """
    Answers only requests to allowed hosts that read, and adds the headers to each answer.

    :param names: under which names the page is reached, in addition to addresses and localhost.
    :param posts: the only paths at which something is changed, below ``root_path``.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], posts: Collection[str] = (), root_path: str = "") -> None:
        self._app = app
        self._names = tuple(names)
        self._posts = {root_path + path for path in posts}
        # With "no-referrer", browsers say "null" in Origin when a form is sent.
        self._headers = {**HEADERS, "referrer-policy": "same-origin"} if posts else HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
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
        if scope["method"] == "POST" and scope["path"] in self._posts:
            if is_from_here(headers, self._names):
                return None
            return PlainTextResponse(
                "This was not sent by a page of this process, so nothing was changed. Behind a proxy, start pgonce "
                "serve with --allow-host and the name that the browser shows.\n",
                403,
            )
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "Only GET is answered: nothing can be changed here.\n", 405, {"allow": "GET, HEAD"}
            )
        return None


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LEAST_TOKEN = 16
_SESSION_SECONDS = 12 * 3600
_MOST_SESSIONS = 100
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Admission:
    """
    How people prove who they are: by a token, or by a proxy that has asked them and says so in a header.

    The header counts only if it comes from one of ``proxies``, or through the Unix socket on which this process
    listens, if ``by_socket``.
    """

    token: str | None = field(default=None, repr=False)
    proxy_header: str | None = None
    proxies: tuple[Network, ...] = ()
    by_socket: bool = False


@dataclass(frozen=True)
class Visitor:
    """A person who may act; ``key`` tells this session from others, and is None for one that a proxy vouches for."""

    person: str
    key: str | None = field(default=None, repr=False)


class Visitors:
    """
    Who is signed in. All of it is forgotten when the process ends.

    :param place: tells this server's cookie from those of others on the same host; browsers ignore the port.
    """

    def __init__(self, admission: Admission, place: str) -> None:
        self._admission = admission
        self._secret = secrets.token_bytes(32)
        # By the hash of the cookie, so that no lookup compares a secret bit by bit.
        self._sessions: OrderedDict[str, tuple[float, Visitor]] = OrderedDict()
        self.cookie = f"pgonce_{hashlib.sha256(place.encode()).hexdigest()[:12]}"

    @property
    def with_token(self) -> bool:
        """Whether one can sign in with a token."""
        return self._admission.token is not None

    def of(self, request: Request) -> Visitor | None:
        """The person who sent this, if that is known."""
        person = self._by_proxy(request)
        if person:
            return Visitor(person)
        found = self._sessions.get(_hash(request.cookies.get(self.cookie, "")))
        return found[1] if found and found[0] > time.monotonic() else None

    def _by_proxy(self, request: Request) -> str | None:
        header, peer = self._admission.proxy_header, request.client
        if header is None:
            return None
        if peer is None:
            is_proxy = self._admission.by_socket
        else:
            address = ipaddress.ip_address(peer.host.partition("%")[0])
            # So a socket for both kinds of addresses shows an old one.
            address = getattr(address, "ipv4_mapped", None) or address
            is_proxy = any(address in network for network in self._admission.proxies)
        values = request.headers.getlist(header)
        if not is_proxy or len(values) != 1:
            return None
        # Starlette reads headers as Latin-1.
        return person_of(values[0].encode("latin-1").decode("utf-8", "replace"))

    def sign_in(self, person: str, token: str) -> str | None:
        """The value of the cookie for this person, if it is the token."""
        known = self._admission.token
        if known is None or not hmac.compare_digest(_hash(token), _hash(known)):
            return None
        value = secrets.token_urlsafe(32)
        self._sessions[_hash(value)] = (time.monotonic() + _SESSION_SECONDS, Visitor(person, _hash(value)))
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return value

    def sign_out(self, request: Request) -> None:
        """Forget the session."""
        self._sessions.pop(_hash(request.cookies.get(self.cookie, "")), None)

    def form_token(self, visitor: Visitor | None, path: str) -> str:
        """What a form for this path has, so that only a page that was shown to this visitor can send it."""
        said = repr((visitor and visitor.person, visitor and visitor.key, path))
        return hmac.new(self._secret, said.encode(), hashlib.sha256).hexdigest()

    def is_genuine(self, visitor: Visitor | None, path: str, token: str) -> bool:
        """Whether the form is one of ours."""
        return hmac.compare_digest(self.form_token(visitor, path).encode(), token.encode())


def person_of(text: str) -> str | None:
    """A name in one line; None if there is none, or if it is too long."""
    name = one_line(text.strip())
    return name if 0 < len(name) <= _LONGEST_NAME else None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
