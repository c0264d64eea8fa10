"""
Decide what a key does, and which queries are listed, in which order.

Pure: runs in ``pgonce watch``. Invariant: the cursor stays on its query, whatever becomes of the order; where that
query is gone, it stays in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pgonce.offsets_store.status.states import ENDED, QueryState

from ..answers.tables import Sort, in_order

Key = tuple[str, str | None]
"""A query's id and the name of its sink."""


class Page(Enum):
    """What fills the screen."""

    LIST = "the list"
    QUERY = "one query"
    DOCTOR = "what pgonce doctor says"
    HELP = "the keys"


class Effect(Enum):
    """What a key asks of the world around the screen."""

    QUIT = "leave the program"
    REFRESH = "read the ledger now"
    EXAMINE = "compare the checkpoint of the query under the cursor with the ledger"


@dataclass(frozen=True)
class View:
    """
    What a person looks at.

    ``cursor`` is the query under it, ``place`` where that stood last, ``top`` the first line of the list that is shown,
    and ``scroll`` the first line of a page of text. ``pages`` ends with the one that is shown; Escape goes back. The
    list has the ``order`` that ``pgonce status --sort`` has by this name.
    """

    pages: tuple[Page, ...] = (Page.LIST,)
    cursor: Key | None = None
    place: int = 0
    top: int = 0
    scroll: int = 0
    filter: str = ""
    is_typing: bool = False
    order: Sort = Sort.STATE

    @property
    def page(self) -> Page:
        """What fills the screen."""
        return self.pages[-1]


def key_of(query: QueryState) -> Key:
    """By what a line of the list is known."""
    return query.query_id, query.sink_name


def listed(queries: Sequence[QueryState], view: View) -> list[QueryState]:
    """The queries that the list shows: those that may still publish, and have the words of the filter in them."""
    words = view.filter.lower().split()
    chosen = [
        query
        for query in queries
        if query.state not in ENDED
        if all(word in f"{query.query_name} {query.sink_name} {query.query_id} {query.state}".lower() for word in words)
    ]
    return in_order(chosen, view.order)


def settled(view: View, rows: Sequence[QueryState], room: int) -> View:
    """The view on these rows: the cursor on its query, which is among the ``room`` lines that are seen."""
    places = {key_of(query): place for place, query in enumerate(rows)}
    if view.page is Page.LIST or view.cursor is None:
        place = places.get(view.cursor, view.place) if view.cursor else view.place
        place = max(0, min(place, len(rows) - 1))
        view = replace(view, cursor=key_of(rows[place]) if rows else None, place=place)
    room = max(room, 1)
    top = min(max(view.top, view.place - room + 1), view.place)
    return replace(view, top=max(0, min(top, len(rows) - room)))


def _moved(view: View, rows: Sequence[QueryState], place: int) -> View:
    if not rows:
        return view
    place = max(0, min(place, len(rows) - 1))
    return replace(view, place=place, cursor=key_of(rows[place]))


def pressed(
    view: View, key: str, character: str | None, rows: Sequence[QueryState], room: int, length: int
) -> tuple[View, Effect | None]:
    """
    What a key makes of the view.

    :param key: its name, as Textual has it.
    :param character: what it types, if it types anything.
    :param rows: the list, as it is shown now.
    :param room: how many lines of the page are seen at a time.
    :param length: how many lines the page of text has.
    """
    if key == "ctrl+c":
        return view, Effect.QUIT
    if view.is_typing:
        return _typed(view, key, character), None
    if key == "q":
        return view, Effect.QUIT
    if key == "r":
        return view, Effect.REFRESH
    if key in ("question_mark", "f1"):
        return _opened(view, Page.HELP), None
    if key == "d" and view.cursor and view.page in (Page.LIST, Page.QUERY):
        return _opened(view, Page.DOCTOR), Effect.EXAMINE
    if view.page is Page.LIST:
        return _pressed_in_list(view, key, rows, room)
    if key in ("escape", "backspace", "left"):
        back = replace(view, pages=view.pages[:-1], scroll=0)
        return back, Effect.REFRESH if view.page is Page.QUERY else None
    scroll = _step(key, view.scroll, room, length)
    return (view if scroll is None else replace(view, scroll=max(0, min(scroll, length - room)))), None


def _pressed_in_list(view: View, key: str, rows: Sequence[QueryState], room: int) -> tuple[View, Effect | None]:
    if key in ("enter", "right") and view.cursor:
        return _opened(view, Page.QUERY), Effect.REFRESH
    if key == "slash":
        return replace(view, is_typing=True), None
    if key == "escape":
        return replace(view, filter=""), None
    if key == "s":
        orders = list(Sort)
        return replace(view, order=orders[(orders.index(view.order) + 1) % len(orders)]), None
    place = _step(key, view.place, room, len(rows))
    return (view if place is None else _moved(view, rows, place)), None


def _opened(view: View, page: Page) -> View:
    return view if view.page is page else replace(view, pages=(*view.pages, page), scroll=0)


def _step(key: str, at: int, room: int, length: int) -> int | None:
    """Where a key moves to; None if it moves nothing."""
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -room, "pagedown": room, "space": room}
    if key in steps:
        return at + steps[key]
    return {"home": 0, "g": 0, "end": length, "G": length, "upper_g": length}.get(key)


def _typed(view: View, key: str, character: str | None) -> View:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    if key == "ctrl+u":
        return replace(view, filter="")
    if character and character.isprintable():
        return replace(view, filter=view.filter + character)
    return view
