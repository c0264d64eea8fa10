"""
Let a person replay or discard dead letters, retire a sink, and accept a batch, from the page.

Runs in ``pgonce serve --allow-actions``. Invariants: each action is the function that the command line calls, in one
transaction of Postgres that ends whether the browser waits for it or not; it was shown before, and then asked for with
a reason, by a person who is signed in, in a form that was made for this person. The ledger keeps who it was, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from pgonce.offsets_store.errors import UNCHANGED, PgonceError, needing_pyspark
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.ledger.writers import is_meant
from pgonce.offsets_store.recovery.by_hand import accept_batch, retire_sink
from pgonce.offsets_store.recovery.dead_letters import (
    Choice,
    chosen_letters,
    discard_letters,
)
from pgonce.offsets_store.status.decisions import Decision, newest_decisions
from pgonce.offsets_store.status.states import QueryState, name_of
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.sink.dead_letters.report import discard_says, replay_says

from . import entrance
from .entrance import Entrance, Form, Refused
from .security import Admission, Visitor

POSTS = frozenset({"/actions/letters", "/actions/retire", "/actions/accept", *entrance.POSTS})
_MOST_LETTERS = 100
_MOST_DECISIONS = 20


@dataclass(frozen=True)
class ActionSettings:
    """
    What actions need.

    ``url`` is that of the role that acts. ``doctor`` says in lines what a query's checkpoint and the ledger make of the
    next start, or raises the reason why it cannot.
    """

    url: str = field(repr=False)
    admission: Admission
    doctor: Callable[[str, str, str | None], list[str]]


class Actions:
    """
    The pages and the paths of actions.

    :param state_of: the state of a query and sink, None if the ledger has none.
    :param show: renders a template with what it shows and a status.
    :param changed: is called when something was changed.
    """

    def __init__(
        self,
        settings: ActionSettings,
        state_of: Callable[[str, str], QueryState | None],
        show: Callable[..., Response],
        changed: Callable[[], None],
        *,
        root: str,
        place: str,
        with_rows: bool,
    ) -> None:
        self._url, self._doctor, self._changed, self._with_rows = settings.url, settings.doctor, changed, with_rows
        self._entrance = Entrance(settings.admission, state_of, show, root, place)
        self._show = self._entrance.show

    def routes(self) -> list[Route]:
        """What is answered here. Each path with a POST is one of ``POSTS``."""
        posts = (
            ("/actions/letters", self._letters),
            ("/actions/retire", self._retire), ("/actions/accept", self._accept),
        )  # fmt: skip
        gets = (
            ("/letters", self._letters_page),
            ("/retire", self._retire_page), ("/accept", self._accept_page),
        )  # fmt: skip
        answered = self._entrance.answered
        return [
            *self._entrance.routes(),
            *(Route(path, answered(handler)) for path, handler in gets),
            *(Route(path, answered(handler), methods=["POST"]) for path, handler in posts),
        ]

    def _done(self, visitor: Visitor, state: QueryState, heading: str, lines: Sequence[str]) -> Response:
        self._changed()
        return self._show("action.html", visitor, state=state, heading=heading, lines=lines)

    # -- Dead letters -------------------------------------------------------------------------------------------------

    def _letters_page(self, visitor: Visitor, form: Form, state: QueryState) -> Response:
        sink, code = form.one("sink"), form.one("code") or None
        letters = OffsetsStore(self._url).dead_letters(state.query_id, sink, _MOST_LETTERS, code=code)
        return self._show(
            "letters.html", visitor,
            state=state, letters=letters, code=code, decisions=self._decisions(state), with_rows=self._with_rows,
        )  # fmt: skip

    def _decisions(self, state: QueryState) -> list[Decision]:
        with reading(self._url) as connection:
            return newest_decisions(connection, state.query_id, state.sink_name or "", _MOST_DECISIONS)

    def _chosen(self, state: QueryState, ids: Sequence[int]) -> Choice:
        return chosen_letters(self._url, state.query_id, state.sink_name, ids=ids)

    def _letters(self, visitor: Visitor, form: Form, state: QueryState) -> Response:
        """Replay or discard: first what it would do, then, with a reason and a yes, the thing itself."""
        word = {"replay": "Replay", "discard": "Discard"}.get(form.one("do"))
        if word is None:
            raise Refused(400, f"It was not said what to do with them. {UNCHANGED}")
        choice, replays = self._chosen(state, form.ids), word == "Replay"
        if form.one("step") == "do":
            reason = form.reason
            _refuse_no_yes(form)
            if replays:
                groups = self._replay(choice, reason, visitor.person, dry_run=False)
                return self._done(visitor, state, "Replayed", replay_says(groups, is_done=True))
            found = discard_letters(choice, self._url, reason=reason, person=visitor.person)
            return self._done(visitor, state, "Discarded", discard_says(found))
        ids = form.ids
        if replays:
            groups = self._replay(choice, None, None, dry_run=True)
            lines = replay_says(groups, is_done=False)
            kept = {one.letter.dead_letter_id for group in groups for one in group.kept}
            ids = [one for one in ids if one not in kept]
            if kept:
                lines.append(
                    "These stay." + (" The others can be replayed now." if ids else " Repair them first, by SQL.")
                )
        else:
            lines = discard_says(discard_letters(choice, self._url, reason="", dry_run=True))
        hidden = [("do", form.one("do")), *(("id", str(one)) for one in ids)]
        noun = "1 dead letter" if len(ids) == 1 else f"{len(ids)} dead letters"
        ask = {"path": "/actions/letters", "hidden": hidden, "button": f"{word} {noun}", "risk": not replays}
        return self._show(
            "action.html", visitor, state=state, heading=f"{word} dead letters?", lines=lines, ask=ids and ask
        )

    def _replay(self, choice: Choice, reason: str | None, person: str | None, *, dry_run: bool) -> list[Any]:
        with needing_pyspark("A replay needs pyspark, to know the types of the rows", UNCHANGED):
            from pgonce.sink.dead_letters.replay import replay_letters
        return replay_letters(choice, self._url, reason=reason, person=person, dry_run=dry_run)

    # -- A query's sink -----------------------------------------------------------------------------------------------

    def _retire_page(self, visitor: Visitor, _: Form, state: QueryState) -> Response:
        found = retire_sink(state.query_id, self._url, sink=state.sink_name, dry_run=True)
        ask = {"path": "/actions/retire", "hidden": [], "button": "Retire this sink", "names": True, "risk": True}
        return self._show("action.html", visitor, state=state, heading="Retire this sink?", lines=found.says, ask=ask)

    def _retire(self, visitor: Visitor, form: Form, state: QueryState) -> Response:
        reason = form.reason
        _refuse_other_name(form, state)
        found = retire_sink(state.query_id, self._url, sink=state.sink_name, reason=reason, person=visitor.person)
        return self._done(visitor, state, "Retired", found.says)

    def _accept_page(self, visitor: Visitor, _: Form, state: QueryState) -> Response:
        lines = self._doctor_says(state)
        return self._show("accept.html", visitor, state=state, lines=lines)

    def _doctor_says(self, state: QueryState) -> list[str]:
        try:
            return self._doctor(state.query_id, self._url, state.sink_name)
        except PgonceError as error:
            return [f"Doctor cannot tell what happens at the next start: {error.what}", error.remedy]

    def _accept(self, visitor: Visitor, form: Form, state: QueryState) -> Response:
        batch = form.one("batch").strip()
        if not re.fullmatch("[0-9]{1,18}", batch):
            raise Refused(400, f"Name the batch that Spark runs next, as a number. {UNCHANGED}")
        sure, reason = form.one("step") == "do", form.reason
        if sure:
            _refuse_other_name(form, state)
        found = accept_batch(
            state.query_id, int(batch), self._url,
            reason=reason, sink=state.sink_name, person=visitor.person, dry_run=not sure,
        )  # fmt: skip
        if sure:
            return self._done(visitor, state, "Accepted, once: start the query", found.says)
        button, heading = f"Accept batch {batch}", f"Accept batch {batch}?"
        ask = {"path": "/actions/accept", "hidden": [("batch", batch)], "button": button, "names": True, "risk": True}
        ask["reason"] = reason
        return self._show("action.html", visitor, state=state, heading=heading, lines=found.says, ask=ask)


def _refuse_no_yes(form: Form) -> None:
    if form.one("sure").strip().lower() != "yes":
        raise Refused(400, f"Type yes to do it. {UNCHANGED}")


def _refuse_other_name(form: Form, state: QueryState) -> None:
    if not is_meant(form.one("sure").strip(), state.query_id, state.query_name):
        raise Refused(400, f"What was typed is neither {name_of(state)} nor the beginning of its id. {UNCHANGED}")


def shown_value(raw: str) -> str:
    r"""
    The same JSON, with escapes for what would hide in it, or turn its text around.

    >>> print(shown_value(f'"a{chr(0x202e)}b"'))
    "a\u202eb"
    """
    if raw.isprintable():
        return raw
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in raw)
