"""
The page in a real browser: Debian's Chromium, driven by Playwright.

Few tests, because each waits for a browser; test_app.py has what the server answers.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support.dead_letters import put_aside
from support.fixtures.browser import DESKTOP, NARROW, PHONE, opened_pages
from support.ledger_history import KAFKA, OTHER, fail, publish
from support.many_queries import fill
from support.served import served

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
# Where the pictures are left, to be looked at; docs/serve.png is the first screen of one of them.
PICTURES = os.environ.get("PGONCE_TEST_PICTURES")


@pytest.fixture
def open_page(browser):
    """Open an address; at the end, nothing may have been refused by the policy, and no script may have failed."""
    with opened_pages(browser, is_trouble) as open_page:
        yield open_page


def is_trouble(message) -> bool:
    """Whether the browser refused something, or a script failed. (The server ends before the page does.)"""
    return message.type in ("error", "warning") and "net::ERR_" not in message.text


def address(site, path: str = "/") -> str:
    """Of a path."""
    return f"http://127.0.0.1:{site.port}{path}"


def test_what_is_new_appears_without_a_reload(url, store, open_page):
    """A batch that is published while the page is open is shown, and what was selected stays so."""
    publish(url, 3, KAFKA)
    publish(url, 3, KAFKA, query_id=OTHER, query_name="clicks", sink_name="public.clicks")
    with served(url) as site:
        page = open_page(address(site))
        expect(page.locator("#live-state")).to_have_text("live")
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.locator("tr.selected .name")).to_have_text("orders")
        publish(url, 4, KAFKA)
        expect(page.locator("tr.selected .batch")).to_have_text("4")
        expect(page.locator("tr.selected .name")).to_have_text("orders")


def test_what_is_wrong_stands_on_top_and_in_the_title(url, store, admin, open_page):
    """Something critical, a ledger that cannot be read, and a server or a proxy that answers with something else."""
    publish(url, 3, KAFKA)
    with served(url) as site:
        page = open_page(address(site))
        state, title = page.locator("#live-state"), page.title()
        expect(state).to_have_text("live")
        fail(url)
        expect(page).to_have_title(f"(1) {title}")
        admin.execute("ALTER SCHEMA pgonce RENAME TO away")
        expect(state).to_have_text("Postgres cannot be read")
        admin.execute("ALTER SCHEMA away RENAME TO pgonce")
        expect(state).to_have_text("live")
        page.route("**/*", lambda route: route.fulfill(body="<h1>Sign in</h1>", content_type="text/html"))
        expect(state).to_have_text("pgonce serve does not answer")
        page.unroute_all()
        expect(state).to_have_text("live")
    expect(state).to_have_text("pgonce serve does not answer")
    expect(page.locator("tr.row .name")).to_have_text("orders")


def test_the_list_is_filtered_and_opened_by_keys_alone(url, store, open_page):
    """/ filters as one types, Enter opens, Escape goes back, ? lists the keys; the filter is in the address."""
    publish(url, 3, KAFKA)
    publish(url, 3, KAFKA, query_id=OTHER, query_name="clicks", sink_name="public.clicks")
    with served(url) as site:
        page = open_page(address(site))
        page.keyboard.press("/")
        page.keyboard.type("order")
        expect(page.locator("tr.row")).to_have_count(1)
        expect(page).to_have_url(address(site, "/?q=order"))
        page.keyboard.press("Enter")
        expect(page.locator("tr.selected .name")).to_have_text("orders")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("orders")
        page.keyboard.press("?")
        expect(page.locator("dialog#keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("dialog#keys")).to_be_hidden()
        page.keyboard.press("Escape")
        expect(page.locator("tr.row")).to_have_count(2)
        expect(page).to_have_url(address(site))


def test_a_click_is_not_lost_to_a_refresh(url, store, open_page):
    """What arrives while the pointer is down waits until it is up."""
    publish(url, 3, KAFKA)
    with served(url) as site:
        page = open_page(address(site))
        expect(page.locator("#live-state")).to_have_text("live")
        page.locator("tr.row .name a").hover()
        with page.expect_response(lambda response: "x-pgonce-part" in response.request.headers) as refreshed:
            page.mouse.down()
            publish(url, 4, KAFKA)
            site.look()
        refreshed.value.finished()
        page.mouse.up()
        expect(page.locator("h1")).to_have_text("orders")


def test_dark_by_the_system_or_by_choice(url, store, open_page):
    """The choice outlives a reload."""
    publish(url, 3, KAFKA)
    ground = "getComputedStyle(document.body).backgroundColor"
    with served(url) as site:
        dark = open_page(address(site), scheme="dark").evaluate(ground)
        page = open_page(address(site))
        light = page.evaluate(ground)
        assert dark != light
        page.keyboard.press("t")
        assert page.evaluate(ground) == dark
        page.reload()
        assert page.evaluate(ground) == dark


def test_hostile_text_does_nothing(url, store, admin, open_page):
    """Names, messages and values full of markup are text, and nothing of them runs."""
    publish(url, 3, {"0": {EVIL: {"0": 10}}}, query_name=EVIL, sink_name=EVIL)
    put_aside(admin, {EVIL: EVIL}, sink_name=EVIL, code=EVIL, message=EVIL, column_name=EVIL)
    with served(url) as site:
        page = open_page(address(site))
        expect(page.locator("tr.row .name")).to_have_text(EVIL)
        expect(page.locator("#live-state")).to_have_text("live")
        page.locator("tr.row .name a").click()
        expect(page.locator("h1")).to_have_text(EVIL)
        expect(page.locator(".data").first).to_contain_text(EVIL.replace('"', '\\"'))
        site.look()
        assert page.title() == f"{EVIL} · pgonce"
        assert page.locator("img").count() == 0


def test_on_a_phone_nothing_is_wider_than_the_screen(url, ledger, open_page):
    """At 360 px, the list and a query's page scroll in one direction only."""
    fill(url, 30, batches=20)
    with served(url, every=1) as site:
        ill = next(state for state in site.reader.snapshot.states if state.failure_code)
        letters = next(state for state in site.reader.snapshot.states if state.dead_letters)
        for path in ("/", *(f"/queries/{one.query_id}?sink={one.sink_name}" for one in (ill, letters))):
            page = open_page(address(site, path), NARROW)
            assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], path


@pytest.mark.parametrize("queries", [1, 30, 300] if PICTURES else [30])
def test_each_page_is_drawn_whole(url, ledger, open_page, queries):
    """Each width in light and dark is drawn whole; PGONCE_TEST_PICTURES names a folder that keeps the pictures."""
    fill(url, queries, batches=150)
    gap = {"GAP": ("The batch before this one is not recorded.", "Run pgonce recover.")}
    with served(url, every=1, explained=gap.get, database="shop at db.example") as site:
        states = site.reader.snapshot.states
        paths = {"list": "/"}
        for kind, one in (
            ("query", states[1] if PICTURES and queries > 1 else None),
            ("refused", next((state for state in states if state.failure_code), None)),
            ("letters", next((state for state in states if state.dead_letters), None)),
        ):
            if one is not None:
                paths[kind] = f"/queries/{one.query_id}?sink={one.sink_name}"
        page = open_page(address(site))
        for kind, path in paths.items():
            page.goto(address(site, path))
            expect(page.locator("#live-state")).to_have_text("live")
            for viewport in (DESKTOP, PHONE):
                page.set_viewport_size(viewport)
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)
                    name = f"{kind}-{queries}-{viewport['width']}-{scheme}.png"
                    picture = page.screenshot(path=Path(PICTURES) / name if PICTURES else None, full_page=queries < 300)
                    assert len(picture) > 5_000
