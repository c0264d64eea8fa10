"""The list of queries, as it is drawn at each width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.watched import NOW, finding, state, text_of

from pgonce.cli.watch.lines import Marks, width_of
from pgonce.cli.watch.query_list import (
    columns_for,
    finding_lines,
    header_line,
    list_lines,
    query_line,
    role_of,
    summary,
)
from pgonce.cli.watch.view import View, key_of
from pgonce.offsets_store.status.states import STATES

ANY = st.one_of(st.none(), st.text(max_size=80))
WIDTHS = (80, 100, 132, 200)


def drawn(query, width, *, ascii_only=False, chosen=False):
    """One line of a list that has only this query."""
    marks = Marks(ascii_only)
    activity = {key_of(query): tuple(range(60))}
    return query_line(query, activity, NOW, columns_for([query], width, marks), marks, is_chosen=chosen)


class TestQueryLine:
    @pytest.mark.parametrize("width", WIDTHS)
    def test_the_columns_of_status_and_the_last_hour(self, width):
        """Name, sink, state, batch, age, rows a minute and lag, under the words that `pgonce status` has."""
        columns = columns_for([state()], width, Marks())
        (header,) = text_of([header_line(columns, width, Marks())])
        assert header.split()[:7] == ["QUERY", "SINK", "STATE", "BATCH", "AGE", "ROWS/S", "LAG"]
        (line,) = text_of([drawn(state(), width)])
        assert line.split()[:7] == ["orders", "public.orders", "running", "12", "12s", "1.2k", "10.3k"]
        assert line.rstrip().endswith("█")

    @settings(deadline=None)
    @given(ANY, ANY, st.sampled_from(WIDTHS), st.booleans(), st.sampled_from(sorted(STATES)))
    def test_no_line_is_wider_than_the_screen(self, name, sink, width, ascii_only, word):
        """Whatever a query and its sink are called; and nothing in a name is for the terminal."""
        line = drawn(state(name, sink_name=sink, state=word), width, ascii_only=ascii_only)
        assert width_of(line) <= width
        text = "".join(text_of([line]))
        assert text.isprintable()
        assert text.isascii() or not ascii_only

    def test_the_age_of_the_lag_where_brokers_have_told_it(self):
        """Then there is a column for it, as in `pgonce status`."""
        query = state(lag_seconds=200.0)
        (header,) = text_of([header_line(columns_for([query], 80, Marks()), 80, Marks())])
        assert "LAG BEHIND" in header
        assert "10.3k     3m" in text_of([drawn(query, 80)])[0]

    def test_what_is_unknown(self):
        """A query that has published nothing has no batch, no age and no rate; an unknown lag is a question mark."""
        query = state(None, batch_id=None, published_at=None, rows_per_second=None, lag=None, sink_name=None)
        assert text_of([drawn(query, 80)])[0].split()[:7] == ["11111111", "?", "running", "-", "-", "-", "?"]

    def test_the_cursor_is_seen_without_colours(self):
        """A sign stands before its line."""
        assert text_of([drawn(state(), 80, chosen=True)])[0].startswith("> orders")
        assert text_of([drawn(state(), 80)])[0].startswith("  orders")

    def test_states_that_need_attention_have_colours(self):
        """Those of `pgonce status`."""
        assert [role_of(word) for word in ("refused", "lagging", "running", "quiet")] == ["bad", "warn", "good", "dim"]


class TestList:
    def test_only_what_is_seen(self):
        """From the top of the view on, as many lines as there is room for."""
        rows = [state(f"q{place}", query_id=f"id{place}") for place in range(300)]
        view = View(top=100, cursor=key_of(rows[101]))
        lines = text_of(list_lines(rows, {}, NOW, view, columns_for(rows, 80, Marks()), 3, Marks()))
        assert [line.split()[0] for line in lines] == ["q100", ">", "q102"]

    def test_columns_do_not_move_while_figures_change(self):
        """A batch more and another rate have room in the columns as they are."""
        before = columns_for([state()], 80, Marks())
        assert columns_for([replace(state(), batch_id=13, rows_per_second=999_999.0, lag=0)], 80, Marks()) == before

    def test_summary(self):
        """How many queries are in which state, the gravest first."""
        queries = [state(), state(state="refused"), state()]
        assert summary(queries) == "3 queries: 1 refused, 2 running"
        assert summary([]) == "0 queries"
        assert summary([state()]) == "1 query: 1 running"


class TestFindings:
    def test_each_ends_with_what_to_do(self):
        """Its kind, since when, the query, and the command; on a wide screen also what was found."""
        (narrow,) = text_of(finding_lines([finding()], NOW, 80, 24, Marks()))
        assert narrow.split() == ["!!", "refused", "4m", "orders", "pgonce", "explain", "TYPE_MISMATCH"]
        long = finding(what="its oldest unread record is 300 s old", severity="warning")
        (wide,) = text_of(finding_lines([long], NOW, 200, 24, Marks()))
        assert wide.startswith(" ! refused 4m orders its oldest unread record is 300 s old pgonce explain")

    def test_no_more_than_there_is_room_for(self):
        """A quarter of the screen; then the line says how many more there are, and which command has them."""
        lines = text_of(finding_lines([finding()] * 50, NOW, 80, 24, Marks()))
        assert len(lines) == 6
        assert lines[-1].strip() == "and 45 more: pgonce health"

    def test_none(self):
        """All is well, and the screen says so."""
        assert text_of(finding_lines([], NOW, 80, 24, Marks())) == ["Nothing needs attention."]

    def test_an_id_is_shortened(self):
        """The beginning of an id is enough for every command, and a whole one leaves no room."""
        found = finding(help=f"pgonce dead-letters {finding().query_id}")
        assert text_of(finding_lines([found], NOW, 80, 24, Marks()))[0].rstrip().endswith("dead-letters 11111111")
