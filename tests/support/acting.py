"""A person who acts in the page, without a browser: fills in the forms that a page has, and sends them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from support.ledger_history import QUERY
from support.served import Answer, Served, served

from pgonce.cli.doctor import doctor_says
from pgonce.serve.actions import ActionSettings
from pgonce.serve.security import Admission

TOKEN = "a token of the tests, long enough"
SINK = "public.orders"
FORM = "application/x-www-form-urlencoded"


def settings(url: str, **admission: Any) -> ActionSettings:
    """Actions as a role, for those who have the token unless it is said otherwise."""
    return ActionSettings(url, Admission(**(admission or {"token": TOKEN})), doctor_says)


@contextmanager
def acting(url: str, *, as_role: str | None = None, **more: Any) -> Iterator[Served]:
    """A server that allows actions."""
    with served(url, actions=settings(as_role or url), **more) as site:
        yield site


class Filled(HTMLParser):
    """The forms of a page: where each is sent to, and its fields with their values."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[tuple[str, list[tuple[str, str]]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a form or a field."""
        known = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append((known.get("action", ""), []))
        elif tag == "input" and self.forms and "name" in known and known.get("type") != "checkbox":
            self.forms[-1][1].append((known["name"], known.get("value", "")))

    def to(self, action: str) -> list[tuple[str, str]]:
        """The fields of the form that is sent there."""
        return next(fields for where, fields in self.forms if where == action)


@dataclass
class Person:
    """Signed in at a site, by a cookie or by the headers of a proxy."""

    site: Served
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def page(self, path: str) -> Answer:
        """What is at this path."""
        return self.site.get(path, **self._known())

    def of(self, name: str, sink: str = SINK, **more: Any) -> Answer:
        """A page of actions about the query of the tests."""
        return self.page(f"/{name}?{urlencode({'query': QUERY, 'sink': sink, **more}, doseq=True)}")

    def _known(self) -> dict[str, str]:
        return {**({"cookie": self.cookie} if self.cookie else {}), **self.headers}

    def send(self, path: str, fields: list[tuple[str, str]], **headers: str) -> Answer:
        """Send a form as a page of the site does."""
        known = {"origin": f"http://127.0.0.1:{self.site.port}", "content_type": FORM, **self._known(), **headers}
        return self.site.get(path, method="POST", body=urlencode(fields).encode(), **known)

    def fill(self, page: Answer, action: str, more: list[tuple[str, str]] | None = None, **values: str) -> Answer:
        """Give the fields of a page's form these values, add ``more`` fields, and send it."""
        fields = [(name, values.get(name, value)) for name, value in Filled(page.text).to(action)]
        return self.send(action, [*fields, *(more or [])])

    def choose(self, do: str, ids: list[int], **more: Any) -> Answer:
        """Choose letters on their page, and press one of its buttons."""
        return self.fill(
            self.of("letters", **more), "/actions/letters", [("do", do), *(("id", str(one)) for one in ids)]
        )


def sign_in(site: Served, name: str = "ann", token: str = TOKEN) -> Person:
    """Sign in with the token."""
    person = Person(site)
    found = person.fill(site.get("/sign-in"), "/sign-in", person=name, token=token)
    assert found.status == 303, found.text
    return Person(site, found.headers["set-cookie"].partition(";")[0])
