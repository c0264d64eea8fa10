"""What a key does, and which queries are listed in which order."""

from __future__ import annotations

from dataclasses import replace

from support.watched import state

from pgonce.cli.answers.tables import Sort
from pgonce.cli.watch.view import Effect, Page, View, key_of, listed, pressed, settled

A, B, C = (state(name, query_id=name * 8, sink_name=f"public.{name}") for name in "abc")


def press(view, *keys, rows=(A, B, C), room=2, length=10):
    """The view after these keys, and what the last one asks for."""
    effect = None
    for key in keys:
        character = {"slash": "/", "space": " "}.get(key, key if len(key) == 1 else None)
        view, effect = pressed(settled(view, rows, room), key, character, rows, room, length)
    return settled(view, rows, room), effect


class TestCursor:
    def test_it_stays_on_its_query(self):
        """Whatever becomes of the order."""
        view, _ = press(View(), "down")
        assert view.cursor == key_of(B)
        view = settled(view, (C, B, A), 2)
        assert (view.cursor, view.place) == (key_of(B), 1)
        view = settled(view, (C, A, B), 2)
        assert (view.cursor, view.place, view.top) == (key_of(B), 2, 1)

    def test_where_its_query_is_gone_it_stays_in_its_place(self):
        """And it goes to the last line if there are fewer lines, or nowhere if there are none."""
        view, _ = press(View(), "down")
        assert settled(view, (A, C), 2).cursor == key_of(C)
        assert settled(view, (A,), 2).cursor == key_of(A)
        assert settled(view, (), 2).cursor is None

    def test_it_is_always_seen(self):
        """The list is scrolled as far as that needs, and no farther."""
        view, _ = press(View(), "end")
        assert (view.cursor, view.top) == (key_of(C), 1)
        view, _ = press(view, "up")
        assert (view.cursor, view.top) == (key_of(B), 1)
        view, _ = press(view, "home")
        assert (view.cursor, view.top) == (key_of(A), 0)
        view, _ = press(view, "pagedown", "pagedown", "pageup", "k", "j")
        assert view.cursor == key_of(B)

    def test_on_the_page_of_a_query_it_does_not_move(self):
        """The query stays open while the list goes on changing, even if the query is gone."""
        view, _ = press(View(), "down", "enter")
        assert settled(view, (A, C), 2).cursor == key_of(B)


class TestPages:
    def test_open_and_back(self):
        """Enter opens a query and asks for all of it; Escape goes back and asks for the list."""
        view, effect = press(View(), "enter")
        assert (view.page, effect) == (Page.QUERY, Effect.REFRESH)
        view, effect = press(view, "escape")
        assert (view.page, effect) == (Page.LIST, Effect.REFRESH)

    def test_help_over_a_query(self):
        """Escape leads back to where the help was asked for, which begins at its top."""
        view, _ = press(View(), "enter", "down", "down", "question_mark")
        assert (view.page, view.scroll) == (Page.HELP, 0)
        assert press(view, "question_mark")[0].pages == view.pages
        assert press(view, "escape")[0].page is Page.QUERY

    def test_a_page_scrolls_no_farther_than_its_end(self):
        """And no farther than its top."""
        view, _ = press(View(), "enter", "end")
        assert view.scroll == 8
        assert press(view, "pagedown")[0].scroll == 8
        assert press(view, "home", "up")[0].scroll == 0

    def test_doctor(self):
        """It is asked about the query under the cursor; without one it has nothing to look at."""
        view, effect = press(View(), "d")
        assert (view.page, effect) == (Page.DOCTOR, Effect.EXAMINE)
        assert press(View(), "d", rows=()) == (View(), None)
        assert press(View(), "enter", rows=()) == (View(), None)

    def test_quit_and_refresh(self):
        """From any page."""
        assert press(View(), "q")[1] is Effect.QUIT
        assert press(View(), "question_mark", "q")[1] is Effect.QUIT
        assert press(View(), "r")[1] is Effect.REFRESH
        assert press(View(), "slash", "ctrl+c")[1] is Effect.QUIT


class TestFilter:
    def test_letters_are_text_while_it_is_typed(self):
        """Even those that are commands; Enter keeps the filter, and Escape takes it away."""
        view, effect = press(View(), "slash", "q", "r", "s", "space", "?", "backspace")
        assert (view.filter, view.is_typing, effect) == ("qrs ", True, None)
        kept, _ = press(view, "enter")
        assert (kept.filter, kept.is_typing) == ("qrs ", False)
        assert press(kept, "escape")[0].filter == ""
        assert press(view, "escape")[0] == replace(view, filter="", is_typing=False)
        assert press(view, "ctrl+u")[0].filter == ""

    def test_what_it_finds(self):
        """Every word has to stand in the name, the sink, the id or the state."""
        queries = [A, B, replace(C, state="refused")]
        assert listed(queries, View(filter="PUBLIC")) == [queries[2], A, B]
        assert listed(queries, View(filter="refused public.c")) == [queries[2]]
        assert listed(queries, View(filter="bbbb")) == [B]
        assert listed(queries, View(filter="nothing")) == []


class TestOrder:
    def test_what_needs_attention_comes_first(self):
        """By state, and then by name."""
        queries = [A, B, replace(C, state="refused")]
        assert [query.query_name for query in listed(queries, View())] == ["c", "a", "b"]

    def test_s_goes_through_all_orders(self):
        """The same as those of `pgonce status --sort`, and then the first again."""
        view, seen = View(), []
        for _ in Sort:
            seen.append(view.order)
            view, _ = press(view, "s")
        assert set(seen) == set(Sort)
        assert view.order is Sort.STATE

    def test_queries_that_have_ended_are_left_out(self):
        """They publish no more, so nobody has to watch them."""
        queries = [A, replace(B, state="retired"), replace(C, state="replaced")]
        assert listed(queries, View()) == [A]
