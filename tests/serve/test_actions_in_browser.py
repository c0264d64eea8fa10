"""Actions in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from support.acting import SINK, TOKEN, acting
from support.dead_letters import put_aside
from support.fixtures.browser import opened_pages
from support.ledger_history import KAFKA, QUERY, publish


@pytest.fixture
def open_page(browser):
    """Open an address; at the end, nothing may have been refused by the policy, and no script may have failed."""
    with opened_pages(browser, is_trouble) as open_page:
        yield open_page


def is_trouble(message) -> bool:
    """Whether it is about the page. (The server ends before the page does, and refuses what the test wants it to.)"""
    return message.type == "error" and not any(
        known in message.text for known in ("net::ERR_", "status of 4", "Refused to frame", "frame-ancestors")
    )


@pytest.fixture
def twelve(url, store, admin):
    """A query has put twelve rows aside, for a name that is too long."""
    publish(url, 3, KAFKA)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5))")
    return [put_aside(admin, {"id": number, "name": f"name {number}"}) for number in range(1, 13)]


def sign_in(page, name="ann"):
    """Give the name and the token."""
    page.get_by_label("Your name").fill(name)
    page.get_by_label("The token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.slow
def test_by_keys_alone(url, admin, twelve, open_page):
    """The keys j and x choose, Tab and Enter go on; letters that are typed into a field are no commands."""
    with acting(url) as site:
        page = open_page(f"http://127.0.0.1:{site.port}/letters?query={QUERY}&sink={SINK}")
        expect(page.get_by_label("Your name")).to_be_focused()
        page.keyboard.type("t? j")
        page.keyboard.press("Tab")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Dead letters")
        expect(page.locator(".who")).to_contain_text("Signed in as t? j")
        page.keyboard.type("jjx")
        expect(page.locator("tr.selected input")).to_be_checked()
        expect(page.locator("tr.selected")).to_have_attribute("id", f"l-{twelve[10]}")
        page.locator("button[value=discard]").focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Discard dead letters?")
        page.get_by_label("reason").focus()
        page.keyboard.type("test t/?")
        page.keyboard.press("Tab")
        page.keyboard.type("yes")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Discarded")
        page.keyboard.press("Escape")
        expect(page.locator("h1")).to_have_text("orders")
    assert admin.execute("SELECT person, reason FROM pgonce.interventions").fetchall() == [("t? j", "test t/?")]


def test_a_form_stays_as_it_is(url, admin, twelve, open_page):
    """What is new in the ledger does not take away what a person has typed or chosen."""
    with acting(url) as site:
        page = open_page(f"http://127.0.0.1:{site.port}/letters?query={QUERY}&sink={SINK}")
        sign_in(page)
        page.locator(f"#i-{twelve[0]}").check()
        expect(page.locator("#live-state")).to_have_text("live")
        publish(url, 4, KAFKA)
        site.look()
        site.look()
        expect(page.locator(f"#i-{twelve[0]}")).to_be_checked()
        page.locator("#all").check()
        expect(page.locator("tr.row input:checked")).to_have_count(12)


def test_another_site_cannot_act(url, admin, twelve, open_page):
    """A page of another site that sends a form changes nothing, although the person is signed in."""
    with acting(url) as site:
        here = f"http://127.0.0.1:{site.port}"
        page = open_page(f"{here}/letters?query={QUERY}&sink={SINK}")
        sign_in(page)
        token = page.locator("form[action='/actions/letters'] input[name=form]").get_attribute("value")
        cookie = page.context.cookies()[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.evaluate("document.cookie") == ""
        # It has even found out the form's token.
        form = (
            f"<form method=post action='{here}/actions/letters'>"
            f"<input name=form value={token}><input name=query value={QUERY}><input name=sink value={SINK}>"
            f"<input name=id value={twelve[0]}><input name=do value=discard><input name=step value=do>"
            "<input name=reason value=evil><input name=sure value=yes><button>x</button></form>"
            f"<iframe src='{here}/letters?query={QUERY}&sink={SINK}'></iframe>"
        )
        page.route("http://evil.example/", lambda route: route.fulfill(body=form, content_type="text/html"))
        page.goto("http://evil.example/")
        assert all("Dead letters" not in frame.content() for frame in page.frames)
        with page.expect_navigation():
            page.get_by_role("button").click()
        assert "was not sent by a page of this process" in page.content()
    assert admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (12,)
