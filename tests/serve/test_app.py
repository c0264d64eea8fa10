"""
What `pgonce serve` answers: the list, a query's page and its live part, from a real server and a real ledger.

Covers: pgonce.serve.charts.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from psycopg.types.json import Jsonb
from support.dead_letters import put_aside
from support.ledger_history import KAFKA, OTHER, QUERY, fail, hear, publish, replay
from support.served import served

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
AHEAD = {"0": {"t": {"0": 15, "1": 25}}}


class Markup(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


class TestList:
    def test_a_query_has_its_line(self, url, store):
        """Name, sink, state in a word, batch and lag."""
        publish(url, 3, KAFKA)
        hear(url, AHEAD, batch_id=3)
        with served(url) as site:
            page = site.get("/")
        assert page.status == 200
        row = re.search(r'<tr class="row good".*?</tr>', page.text, re.DOTALL)[0]
        for shown in (
            ">orders<",
            ">public.orders<",
            "</i>running",
            ">3<",
            ">10<",
            f"/queries/{QUERY}?sink=public.orders",
        ):
            assert shown in row

    def test_what_needs_attention_stands_on_top(self, url, store, admin):
        """A refused query is a finding, with what says more; the list begins with it."""
        publish(url, 3, KAFKA)
        publish(url, 3, KAFKA, query_id=OTHER, sink_name="public.customers", query_name="a customer")
        fail(url)
        with served(url) as site:
            text = site.get("/").text
        finding = re.search(r'<article class="finding critical">.*?</article>', text, re.DOTALL)[0]
        assert ">orders</a>" in finding
        assert "NOT_NULL_VIOLATION at batch 4" in finding
        assert "<code>pgonce explain NOT_NULL_VIOLATION</code>" in finding
        assert text.index(">orders</a></td>") < text.index(">a customer</a></td>")

    def test_the_query_string_filters_and_sorts(self, url, store, admin):
        """A link holds the whole view; what it misspells is left out."""
        for number, name in enumerate(("orders", "clicks", "returns")):
            publish(url, number, KAFKA, query_id=f"{number}1111111", query_name=name, sink_name=f"public.{name}")
        fail(url, query_id="21111111", sink_name="public.returns")
        with served(url) as site:

            def shown(query_string: str) -> list[str]:
                return re.findall(r'<td class="name"><a [^>]*>([^<]*)</a>', site.get(f"/?{query_string}").text)

            assert shown("sort=name") == ["clicks", "orders", "returns"]
            assert shown("sort=-name") == ["returns", "orders", "clicks"]
            assert shown("sort=nonsense") == ["returns", "clicks", "orders"]
            assert shown("sort=batch") == ["returns", "clicks", "orders"]
            assert shown("q=CLI") == ["clicks"]
            assert shown("q=0111") == ["orders"]
            assert shown("q=not_null") == ["returns"]
            assert shown("state=refused") == ["returns"]
            assert shown("state=attention&q=public.") == ["returns"]
            assert shown("state=nonsense&sort=name") == ["clicks", "orders", "returns"]
            assert "No query is like this" in site.get("/?q=nothing").text

    def test_an_empty_ledger_and_none(self, url, ledger, postgres_server):
        """An empty ledger says what brings a query there; a database without one is a trouble with its remedy."""
        with served(url) as site:
            assert "No streaming query" in site.get("/").text
        with served(postgres_server.url("postgres")) as site:
            text = site.get("/").text
            assert "cannot be read since" in text
            assert "NO_LEDGER" in text
            assert site.get("/healthz").status == 503


class TestQuery:
    def test_the_page_of_a_query_shows_its_state_and_what_to_do(self, url, store, admin):
        """State, batches, offsets with lag, failures with their help, dead letters, commands, and the next start."""
        replay(url, publish(url, 2, KAFKA, rows=7))
        publish(url, 3, KAFKA, rows=12345)
        hear(url, AHEAD, batch_id=3)
        fail(url)
        put_aside(admin, {"id": 7, "name": "too long"})
        with served(
            url, explained={"NOT_NULL_VIOLATION": ("A column lacks its value.", "`pgonce <x>` says which.")}.get
        ) as site:
            text = site.query(QUERY).text
        for shown in (
            "<h1>orders</h1>", "</i>refused", "A column lacks its value.",
            "<code>pgonce &lt;x&gt;</code> says which.", "batch 3: 12,345 rows", "replayed 1 times",
            "value too long for type character varying(5)", "too long", "Its last batch is 3.",
            f"pgonce doctor {QUERY}",
            f"pgonce dead-letters {QUERY} --sink public.orders<",
            f"pgonce accept {QUERY} --sink public.orders --batch N",
            f"pgonce retire {QUERY} --sink public.orders --reason",
        ):  # fmt: skip
            assert shown in text, shown
        cells = re.findall(r"<tr><td>t</td>(.*?)</tr>", text, re.DOTALL)
        assert [re.findall(r'class="n">([^<]*)<', cell) for cell in cells] == [
            ["0", "10", "15", "5"],
            ["1", "20", "25", "5"],
        ]

    def test_dead_letters_of_one_code(self, url, store, admin):
        """The filter is in the link; it shows letters of that code alone."""
        publish(url, 3, KAFKA)
        put_aside(admin, {"id": 1, "name": "first"})
        put_aside(admin, {"id": 2, "name": "second"}, code="23514", message="it violates a check")
        with served(url) as site:
            both, one = site.query(QUERY).text, site.query(QUERY, more="&code=23514").text
        assert "first" in both
        assert "second" in both
        assert "second" in one
        assert "first" not in one.partition("Dead letters")[2].partition("</table>")[0]
        assert "?sink=public.orders&amp;code=22001" in one

    def test_rows_can_be_hidden(self, url, store, admin):
        """With --hide-rows the page has nothing of what is in a dead letter."""
        publish(url, 3, KAFKA)
        put_aside(
            admin,
            {"id": 1, "name": "Erika"},
            code="23505",
            record_value=b"Erika",
            message="Key (name)=(Erika) already exists.",
        )
        with served(url, with_rows=False) as site:
            page = site.query(QUERY).text
        assert "Erika" not in page
        assert "<code>23505</code> <b>name</b>" in page

    def test_other_ways_to_name_it(self, url, store):
        """A name or the beginning of an id leads to the page; an unknown one is a page that says so."""
        publish(url, 3, KAFKA)
        publish(url, 3, KAFKA, sink_name="a/b?c=d&e#f")
        with served(url) as site:
            moved = site.get("/queries/orders")
            assert (moved.status, moved.headers["location"]) == (302, f"/queries/{QUERY}?sink=a%2Fb%3Fc%3Dd%26e%23f")
            assert "a/b?c=d&amp;e#f" in site.get(moved.headers["location"]).text
            missing = site.get("/queries/nothing")
            assert (missing.status, "No query has this id" in missing.text) == (404, True)
            assert site.get("/nothing").status == 404


class TestHostileText:
    """Nothing that came from outside becomes markup, wherever it stands."""

    @pytest.fixture
    def pages(self, url, store, admin):
        """Every page of a ledger in which each text is hostile."""
        publish(url, 3, {"0": {EVIL: {"0": 10}}}, query_name=EVIL, sink_name=EVIL, checkpoint_location=EVIL)
        admin.execute("UPDATE pgonce.writers SET run_id = %s", [EVIL])
        hear(url, {"0": {EVIL: {"0": 15}}}, batch_id=3, disagreement=EVIL)
        fail(url, code=EVIL, message=EVIL, sink_name=EVIL, query_name=EVIL)
        put_aside(
            admin, {EVIL: EVIL}, sink_name=EVIL, code=EVIL, message=EVIL, column_name=EVIL, target=EVIL,
            position=Jsonb({EVIL: EVIL}),
        )  # fmt: skip
        with served(url) as site:
            yield [
                site.get("/"),
                site.get(f"/?q={EVIL.replace(' ', '+')}"),
                site.query(QUERY, EVIL),
                site.query(QUERY, EVIL, "&code=" + EVIL.replace(" ", "+")),
                site.get("/nothing/" + EVIL.replace(" ", "+")),
            ]

    def test_no_element_and_no_attribute_is_theirs(self, pages):
        """The only script is ours, no attribute is a handler or a style, and templates are not run on values."""
        for page in pages:
            found = Markup(page.text)
            assert found.elements.count("script") == 1
            assert "img" not in found.elements
            assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
            assert all(
                not value.lower().startswith("javascript:") for name, value in found.attributes if name == "href"
            )
            assert "{{49}}" not in page.text
            assert ">49<" not in page.text

    def test_their_text_is_there(self, pages):
        """It is shown as it is, not left out."""
        assert all("&lt;script&gt;alert(1)" in page.text for page in pages[:4])


def test_the_live_part_is_answered_alone(url, store, admin):
    """With what the page's script shows: how much is critical, and whether the ledger can be read now."""
    publish(url, 3, KAFKA)
    fail(url)
    with served(url) as site:
        for path in ("/", f"/queries/{QUERY}?sink=public.orders", "/queries/nothing"):
            page, part = site.get(path).text, site.get(path, x_pgonce_part="live").text
            assert '<body data-every="0.2"' in page
            assert "<body" not in part
            for text in (page, part):
                assert '<span id="seen" hidden data-critical="1"></span>' in text
        assert '<tr class="row' in site.get("/", x_pgonce_part="live").text
        admin.execute("ALTER SCHEMA pgonce RENAME TO away")
        site.look()
        assert '<span id="seen" hidden data-critical="1" data-trouble></span>' in site.get("/").text
    with served(url, every=60) as site:
        assert '<body data-every="5"' in site.get("/").text
