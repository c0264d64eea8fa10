"""
Let a person in who may act, read what a form says, and answer in words what goes wrong.

Runs in ``pgonce serve --allow-actions``. Invariants: a handler runs only for a person who is signed in and, if it
changes something, for a form that was made for this person; it runs in a thread, to its end, whether the browser waits
or not. Neither a page nor the log shows the token, a cookie, or the words of an error that is not ours.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pgonce.offsets_store.errors import (
    UNCHANGED,
    ConfigurationError,
    ConnectError,
    LedgerError,
    NotInstalledError,
    PgonceError,
    without_its_words,
)
from pgonce.offsets_store.log_lines import one_line
from pgonce.offsets_store.recovery.by_hand import refuse_no_reason
from pgonce.offsets_store.status.states import QueryState

from .security import Admission, Visitor, Visitors, person_of

POSTS = ("/sign-in", "/sign-out")
_MOST_BYTES = 8 * 1024 * 1024
_LONGEST_REASON = 1000
_HIGHEST_ID = 2**63 - 1
# After a wrong token: a program must not try many.
_WRONG_TOKEN_SECONDS = 1.0
_log = logging.getLogger("pgonce")


class Refused(Exception):
    """What was asked is not done; ``what`` says why, and ``status`` is that of the answer."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(status, what)
        self.status = status
        self.what = what


@dataclass(frozen=True)
class Form:
    """The fields of a form, or of a query string, in their order."""

    fields: Sequence[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for each, value in self.fields if each == name]

    def one(self, name: str) -> str:
        """The first value of a field; empty if there is none."""
        return next(iter(self.all(name)), "")

    @property
    def ids(self) -> list[int]:
        """The ids of dead letters: never none, because no ids would mean all letters."""
        found = [int(one) for one in self.all("id") if re.fullmatch("[0-9]{1,19}", one)]
        if not found or max(found) > _HIGHEST_ID:
            raise Refused(400, f"No dead letter was chosen. {UNCHANGED}")
        return sorted(set(found))

    @property
    def reason(self) -> str:
        """
        Why.

        :raises ConfigurationError: NO_REASON.
        """
        reason = one_line(self.one("reason").strip())[:_LONGEST_REASON]
        refuse_no_reason(reason)
        return reason

    def refuse_nul(self) -> None:
        """Refuse what no text of Postgres holds; a reason gets an escape for it."""
        if any("\0" in value for name, value in self.fields if name != "reason"):
            raise Refused(400, f"No text in Postgres can have a NUL. {UNCHANGED}")


async def _read(request: Request) -> Form:
    """The fields of a form, of a bounded size."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Refused(415, f"This is not a form. {UNCHANGED}")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise Refused(413, f"This is more than can be sent at once. {UNCHANGED}")
    return Form(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


Handler = Callable[[Visitor, Form, QueryState], Response]


class Entrance:
    """
    Where people sign in and out, and the way to everything that they may do.

    :param state_of: the state of a query and sink, None if the ledger has none.
    :param render: renders a template with a status and what it shows.
    :param place: tells this server from others on the same host.
    """

    def __init__(
        self,
        admission: Admission,
        state_of: Callable[[str, str], QueryState | None],
        render: Callable[..., Response],
        root: str,
        place: str,
    ) -> None:
        self._visitors = Visitors(admission, place + root)
        self._state_of, self._render, self._root = state_of, render, root

    def routes(self) -> list[Route]:
        """Where one signs in and out."""
        return [
            Route("/sign-in", self._sign_in_page),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]

    def show(self, name: str, visitor: Visitor | None, status: int = 200, **context: Any) -> Response:
        """A page for this visitor, whose forms only this visitor can send."""

        def form_token(path: str) -> str:
            return self._visitors.form_token(visitor, path)

        return self._render(name, status, visitor=visitor, form_token=form_token, **context)

    def _sign_in_page(self, request: Request, problem: str = "", status: int = 200, person: str = "") -> Response:
        after = request.query_params.get("after", "/")
        with_token = self._visitors.with_token
        return self.show(
            "sign_in.html", None, status, after=after, problem=problem, person=person, with_token=with_token
        )

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = await _read(request)
            self._refuse_strange(None, "/sign-in", form)
        except Refused as error:
            return self._sign_in_page(request, error.what, error.status)
        person = person_of(form.one("person"))
        if person is None:
            return self._sign_in_page(request, "Give your name, in at most 100 characters.", 400)
        value = self._visitors.sign_in(person, form.one("token").strip())
        if value is None:
            await asyncio.sleep(_WRONG_TOKEN_SECONDS)
            return self._sign_in_page(request, "This is not the token.", 403, person)
        # Never to another site.
        after = form.one("after")
        is_ours = re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", after)
        answer = RedirectResponse(self._root + (after if is_ours else "/"), 303)
        answer.set_cookie(
            self._visitors.cookie,
            value,
            path=self._root or "/",
            httponly=True,
            samesite="strict",
            secure=request.headers.get("origin", "").startswith("https://"),
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        visitor = self._visitors.of(request)
        try:
            self._refuse_strange(visitor, "/sign-out", await _read(request))
        except Refused as error:
            return self.show("action.html", visitor, error.status, state=None, problem=error.what)
        self._visitors.sign_out(request)
        answer = RedirectResponse(f"{self._root}/", 303)
        answer.delete_cookie(self._visitors.cookie, path=self._root or "/", httponly=True, samesite="strict")
        return answer

    def _to_sign_in(self, request: Request, path: str) -> Response:
        if request.method == "POST":
            raise Refused(403, f"You are not signed in, or no more. {UNCHANGED}")
        after = urlencode({"after": f"{path}?{urlencode(request.query_params.multi_items())}"})
        return RedirectResponse(f"{self._root}/sign-in?{after}", 303)

    def _refuse_strange(self, visitor: Visitor | None, path: str, form: Form) -> None:
        if not self._visitors.is_genuine(visitor, path, form.one("form")):
            raise Refused(
                403, f"This form is not one that you were given, or pgonce serve has started again since. {UNCHANGED}"
            )

    def answered(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """``handler``, as the answer to a request of a person who is signed in."""

        async def answer(request: Request) -> Response:
            visitor, state = self._visitors.of(request), None
            path = request.scope["path"].removeprefix(self._root)
            try:
                if visitor is None:
                    return self._to_sign_in(request, path)
                if request.method == "POST":
                    form = await _read(request)
                    self._refuse_strange(visitor, path, form)
                else:
                    form = Form(request.query_params.multi_items())
                form.refuse_nul()
                found = self._state_of(form.one("query"), form.one("sink"))
                state = _known(found, 404, f"The ledger has no such query and sink. {UNCHANGED}")
                return await run_in_threadpool(handler, visitor, form, state)
            except ClientDisconnect:
                return Response(status_code=400)
            except Refused as error:
                return self.show("action.html", visitor, error.status, state=state, problem=error.what)
            except PgonceError as error:
                return self.show("action.html", visitor, _status_of(error), state=state, error=error)
            except Exception as error:  # noqa: BLE001 (its words may show a row, so neither page nor log has them)
                _log.error("an action of pgonce serve failed: %s", without_its_words(error))
                what = f"Something went wrong ({type(error).__name__}). Look before you do it again."
                return self.show("action.html", visitor, 500, state=state, problem=what)

        return answer


_Found = TypeVar("_Found")


def _known(found: _Found | None, status: int, what: str) -> _Found:
    if found is None:
        raise Refused(status, what)
    return found


def _status_of(error: PgonceError) -> int:
    if "NOT_PERMITTED" in error.code:
        return 403
    if isinstance(error, (LedgerError, ConnectError)):
        return 503
    is_ours = isinstance(error, ConfigurationError) and not isinstance(error, NotInstalledError)
    return 400 if is_ours else 409
