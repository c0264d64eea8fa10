"""Actions in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support.acting import SINK, TOKEN, acting
from support.dead_letters import put_aside
from support.fixtures.browser import DESKTOP, NARROW, PHONE, opened_pages
from support.ledger_history import KAFKA, QUERY, publish
from support.recoveries import history
from support.stopped_query import entries, write_checkpoint

EVIL = "</textarea><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e"
PICTURES = os.environ.get("PGONCE_TEST_PICTURES")


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


def do_it(page, button, reason="because", sure="yes"):
    """Give the reason, confirm, and press the button."""
    page.get_by_label("reason").fill(reason)
    page.get_by_label("to do it").fill(sure)
    page.get_by_role("button", name=button).click()


def letters_page(site, page, name="ann"):
    """From the page of the query to its letters."""
    page.get_by_role("link", name="Repair, replay or discard").click()
    sign_in(page, name)
    expect(page.locator("h1")).to_have_text("Dead letters")


@pytest.mark.slow
def test_twelve_letters(url, admin, twelve, open_page):
    """Of twelve letters that are listed, 3 are repaired, 2 replayed and 1 discarded; the ledger says who and why."""
    with acting(url) as site:
        page = open_page(f"http://127.0.0.1:{site.port}/queries/{QUERY}?sink={SINK}")
        letters_page(site, page)
        expect(page.locator("tr.row")).to_have_count(12)
        for one in twelve[:3]:
            page.locator(f"#l-{one}").get_by_role("link", name="Repair").click()
            expect(page.get_by_label("name", exact=True)).to_be_focused()
            page.get_by_label("name", exact=True).fill(f'"n{one}"')
            do_it(page, "Save the row", reason="shortened")
            expect(page.locator("h1")).to_have_text("Repaired")
            page.get_by_role("link", name="Dead letters of").click()
        for one in twelve[:2]:
            page.locator(f"#i-{one}").check()
        page.get_by_role("button", name="Replay chosen").click()
        expect(page.locator("h1")).to_have_text("Replay dead letters?")
        expect(page.locator(".says")).to_contain_text("2 into public.events (mode append)")
        do_it(page, "Replay 2 dead letters", reason="they fit now")
        expect(page.locator("h1")).to_have_text("Replayed")
        page.get_by_role("link", name="Dead letters of").click()
        expect(page.locator("tr.row")).to_have_count(10)
        page.locator(f"#i-{twelve[11]}").check()
        page.get_by_role("button", name="Discard chosen").click()
        do_it(page, "Discard 1 dead letter", reason="test data")
        expect(page.locator("h1")).to_have_text("Discarded")
        page.get_by_role("link", name="Dead letters of").click()
        expect(page.locator("tr.row")).to_have_count(9)
        expect(page.locator(".decisions tbody tr").first).to_contain_text("discard-dead-letters")
        expect(page.locator(".decisions tbody tr").first).to_contain_text("ann")
        expect(page.locator(".decisions tbody tr")).to_have_count(5)
    assert admin.execute("SELECT id, name FROM events ORDER BY id").fetchall() == [(1, "n1"), (2, "n2")]
    found = admin.execute("SELECT kind, person, reason, details -> 'ids' FROM pgonce.interventions ORDER BY 4, 1")
    assert sorted(found.fetchall(), key=str) == sorted(
        [
            *(("repair-dead-letters", "ann", "shortened", [one]) for one in twelve[:3]),
            ("replay-dead-letters", "ann", "they fit now", twelve[:2]),
            ("discard-dead-letters", "ann", "test data", twelve[11:]),
        ],
        key=str,
    )
    assert admin.execute("SELECT row_data ->> 'name' FROM pgonce.dead_letters WHERE dead_letter_id = 3").fetchone() == (
        "n3",
    )


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


@pytest.mark.slow
def test_hostile_text_does_nothing(url, store, admin, open_page):
    """Names, values and messages full of markup are text on every page of actions, and nothing of them runs."""
    publish(url, 3, {"0": {EVIL: {"0": 10}}}, query_name=EVIL, sink_name=EVIL)
    one = put_aside(admin, {EVIL: EVIL}, sink_name=EVIL, code=EVIL, message=EVIL, column_name=EVIL)
    with acting(url) as site:
        page = open_page(f"http://127.0.0.1:{site.port}/")
        page.locator("tr.row .name a").click()
        letters_page(site, page, EVIL[:60])
        page.get_by_role("link", name="Repair").click()
        expect(page.locator("textarea")).to_have_value('"' + EVIL[:-1].replace('"', '\\"') + '\\u202e"')
        page.locator("textarea").fill('"fine"')
        do_it(page, "Save the row", reason=EVIL)
        page.get_by_role("link", name="Dead letters of").click()
        page.locator(f"#i-{one}").check()
        page.get_by_role("button", name="Discard chosen").click()
        do_it(page, "Discard 1 dead letter", reason=EVIL)
        page.get_by_role("link", name="Dead letters of").click()
        expect(page.locator(".decisions tbody tr")).to_have_count(2)
        assert page.locator("img").count() == 0
        assert "owned" not in page.title().replace("document.title='owned'", "")


@pytest.mark.slow
def test_pictures(url, store, admin, open_page, tmp_path):
    """Each page of actions is drawn whole at both widths, dark and light, and scrolls in one direction only."""
    checkpoint = write_checkpoint(tmp_path / "ckpt", entries(8, 9), (7, 8))
    (checkpoint / "state").mkdir()
    history(url, 5, checkpoint_location=str(checkpoint))
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5))")
    ids = [put_aside(admin, {"id": n, "name": f"a name of {n}", "more": "x" * 90}) for n in range(6)]
    put_aside(admin, {"id": 9, "name": "fits"}, code="23514", message="it violated a check")
    with acting(url, explained={"DEAD_LETTER_NOT_FOUND": ("It is gone.", "Look again.")}.get) as site:
        about = f"query={QUERY}&sink={SINK}"
        page = open_page(f"http://127.0.0.1:{site.port}/letters?{about}")

        def draw(kind):
            for viewport in (DESKTOP, PHONE, NARROW):
                page.set_viewport_size(viewport)
                assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], kind
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)
                    name = f"{kind}-{viewport['width']}-{scheme}.png"
                    kept = Path(PICTURES) / name if PICTURES and viewport is not NARROW else None
                    assert len(page.screenshot(path=kept, full_page=True)) > 5_000

        draw("sign-in")
        sign_in(page)
        page.goto(f"http://127.0.0.1:{site.port}/letter?{about}&id={ids[0]}")
        draw("repair")
        page.get_by_label("name", exact=True).fill('"short"')
        do_it(page, "Save the row", reason="it was too long")
        draw("repaired")
        page.get_by_role("link", name="Dead letters of").click()
        page.locator(f"#i-{ids[0]}").check()
        page.locator(f"#i-{ids[1]}").check()
        draw("letters")
        page.get_by_role("button", name="Replay chosen").click()
        draw("replay")
        page.goto(f"http://127.0.0.1:{site.port}/letter?{about}&id=999")
        draw("gone")
        page.goto(f"http://127.0.0.1:{site.port}/accept?{about}")
        draw("accept")
        page.get_by_label("batch").fill("9")
        page.get_by_label("reason").fill("restored on purpose")
        page.get_by_role("button", name="See what").click()
        draw("accept-sure")
        page.goto(f"http://127.0.0.1:{site.port}/retire?{about}")
        draw("retire")
        page.goto(f"http://127.0.0.1:{site.port}/queries/{QUERY}?sink={SINK}")
        draw("query")
