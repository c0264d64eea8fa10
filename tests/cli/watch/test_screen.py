"""The screen of `pgonce watch`, with its keys, on a real ledger."""

from __future__ import annotations

import psycopg
import pytest
from support.watched import fail, fill, shown, until, watching

from pgonce.cli.watch.lines import Marks
from pgonce.cli.watch.view import Page

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x[/red]\nFAKE \u202e evil"


def rename(url, name, to):
    """Give a query, and its sink, another name."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE pgonce.writers SET query_name = %s, sink_name = %s WHERE query_name = %s", [to, to, name]
        )


def chosen(app):
    """The name that stands on the line of the cursor."""
    return next(line.split()[1] for line in shown(app).splitlines() if line.startswith("> "))


def test_the_list_filter_sort_and_help(url):
    """The list shows each query, at any size; a filter leaves some, `s` sorts, and `?` tells the keys and states."""
    fill(url, 12)
    fail(url, "query_7")

    async def steps(app, pilot):
        screen = await until(app, pilot, lambda text: "12 queries: 1 refused, 11 running" in text)
        assert "!! refused" in screen
        assert "pgonce explain TYPE_MISMATCH" in screen
        assert chosen(app) == "query_7"
        await pilot.press("slash", *"query_1")
        assert "Filter: query_1" in shown(app)
        await pilot.press("enter")
        assert "1-4 of 4  by state  filter: query_1" in shown(app)
        await pilot.press("slash", *"nothing", "enter")
        assert "None of the 12 queries has 'query_1nothing'" in shown(app)
        await pilot.press("escape", "home", "s")
        assert "by age" in shown(app)
        await pilot.press("question_mark")
        assert "Keys" in shown(app)
        assert "its listener fell silent" in shown(app)
        await pilot.press("escape")
        assert app.view.page is Page.LIST
        await pilot.resize_terminal(60, 12)
        await until(app, pilot, lambda text: max(map(len, text.splitlines())) <= 60 and "> query_" in text)

    watching(url, steps, size=(100, 30))


def test_a_query_is_opened_and_closed(url):
    """Enter shows its failures, offsets and batches; PgDn reads on; Escape goes back to the same line."""
    fill(url, 3)
    fail(url, "query_2", message="Column amount is text.")

    async def steps(app, pilot):
        await pilot.press("enter")
        screen = await until(app, pilot, lambda text: "Failures  1" in text)
        assert "query_2 into public.table_2: refused" in screen
        assert "checkpoint  /checkpoints/2" in screen
        assert "To do: pgonce explain TYPE_MISMATCH" in screen
        await pilot.press("end")
        assert "BATCH" in shown(app)
        assert "inline" in shown(app)
        await pilot.press("escape")
        assert chosen(app) == "query_2"

    watching(url, steps)


def test_doctor(url):
    """`d` shows what doctor says of the query under the cursor, and Escape leads back."""
    fill(url, 2)
    asked = []

    def examine(query_id, sink_name):
        asked.append(sink_name)
        return [f"Checkpoint of {sink_name}:", "  offsets/ ends with batch 9."]

    async def steps(app, pilot):
        await pilot.press("down", "d")
        screen = await until(app, pilot, lambda text: "offsets/ ends" in text)
        assert "Checkpoint of public.table_2:\n  offsets/ ends with batch 9." in screen
        await pilot.press("escape")
        assert app.view.page is Page.LIST

    watching(url, steps, examine=examine)
    assert asked == ["public.table_2"]


def test_postgres_goes_away_and_comes_back(tcp_url, proxy):
    """The last picture stays, with the time and the reason; afterwards the screen goes on by itself."""
    fill(tcp_url, 2)

    async def steps(app, pilot):
        await until(app, pilot, lambda text: "2 queries" in text)
        proxy.stop()
        screen = await until(app, pilot, lambda text: "No answer since" in text)
        assert "could not be reached" in screen
        assert "This is the picture of" in " ".join(screen.split())
        assert "query_1" in screen
        await pilot.press("down")
        assert chosen(app) == "query_2"
        proxy.start()
        fail(tcp_url, "query_1")
        await until(app, pilot, lambda text: "No answer since" not in text and "1 refused" in text)
        assert chosen(app) == "query_2"

    watching(proxy.url, steps)


def test_postgres_that_does_not_answer(tcp_url, proxy):
    """A server that has fallen silent is told from one that answers, before any error says so."""
    fill(tcp_url, 1)

    async def steps(app, pilot):
        await until(app, pilot, lambda text: "1 query" in text)
        with proxy.black_hole():
            screen = await until(app, pilot, lambda text: "Postgres has not answered for" in text)
            assert "query_1" in screen
            await pilot.press("question_mark", "escape")
        await until(app, pilot, lambda text: "has not answered" not in text)

    watching(proxy.url, steps)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_names_from_outside_are_only_text(url, ascii_only):
    """Escapes, line breaks and markup in the name of a query, a sink, an error or a topic are written out."""
    fill(url, 2)
    rename(url, "query_1", HOSTILE)
    fail(url, HOSTILE, HOSTILE, HOSTILE)

    async def steps(app, pilot):
        screen = await until(app, pilot, lambda text: "1 refused" in text)
        assert r"\x1b" in screen
        await pilot.press("enter")
        screen += await until(app, pilot, lambda text: "Failures  1" in text)
        await pilot.press("end")
        screen += shown(app)
        assert "[red]x[/red]" in screen
        assert all(character.isprintable() or character == "\n" for character in screen)
        assert not any(line.startswith("FAKE") for line in screen.splitlines())
        assert screen.isascii() or not ascii_only

    watching(url, steps, size=(200, 40), marks=Marks(ascii_only))


def test_what_is_pasted(url):
    """It goes into the filter; elsewhere it does nothing, because letters are commands there."""
    fill(url, 3)

    async def steps(app, pilot):
        from textual import events

        app.post_message(events.Paste("q"))
        await pilot.press("slash")
        app.post_message(events.Paste("query_2"))
        await until(app, pilot, lambda text: "Filter: query_2" in text)
        assert chosen(app) == "query_2"

    watching(url, steps)
