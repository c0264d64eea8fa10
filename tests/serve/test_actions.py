"""
What a person can do in the page, what is refused, and what the ledger keeps of it.

Covers: offsets_store.status.decisions, sink.dead_letters.report.
"""

from __future__ import annotations

import doctest
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg.types.json import Jsonb
from support.acting import FORM, SINK, Filled, Person, acting, sign_in
from support.dead_letters import put_aside
from support.ledger_history import KAFKA, QUERY, publish
from support.pages import DOCS, sections, sql_blocks
from support.recoveries import history
from support.served import served
from support.stopped_query import entries, write_checkpoint

from pgonce.offsets_store.ledger.migrations import grants
from pgonce.offsets_store.status import decisions
from pgonce.serve import actions

SURE = {"reason": "because", "sure": "yes"}


@pytest.fixture
def admin(admin, url, store):
    """A query has published a batch into its table."""
    publish(url, 3, KAFKA)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5))")
    return admin


@pytest.fixture
def site(url, admin):
    """A server that allows actions."""
    with acting(url) as site:
        yield site


@pytest.fixture
def ann(site):
    """A person who is signed in."""
    return sign_in(site)


def who(admin):
    """Kind, person and reason of all decisions."""
    return admin.execute("SELECT kind, person, reason FROM pgonce.interventions ORDER BY intervention_id").fetchall()


def left(admin):
    """The letters that are there, with their rows."""
    found = admin.execute("SELECT dead_letter_id, row_data FROM pgonce.dead_letters ORDER BY dead_letter_id")
    return dict(found.fetchall())


def in_table(admin):
    """The rows of the table."""
    return admin.execute("SELECT id, name FROM events ORDER BY id").fetchall()


class TestLetters:
    def test_replayed_and_discarded(self, ann, admin):
        """Each is shown first, wants a reason and a yes, and is in the ledger with the person."""
        rows = ((1, "n1"), (2, "name 2"), (3, "name 3"))
        fits, bad, other = (put_aside(admin, {"id": n, "name": name}) for n, name in rows)
        shown = ann.choose("replay", [fits, bad])
        assert f"id {bad}: the row is refused" in shown.text
        assert "Replay 1 dead letter<" in shown.text
        assert in_table(admin) == []
        done = ann.fill(shown, "/actions/letters", **SURE)
        assert (done.status, in_table(admin)) == (200, [(1, "n1")])
        shown = ann.choose("discard", [other])
        assert f"id {other}" in shown.text
        assert other in left(admin)
        assert ann.fill(shown, "/actions/letters", **SURE).status == 200
        assert list(left(admin)) == [bad]
        assert [one[:2] for one in who(admin)] == [("replay-dead-letters", "ann"), ("discard-dead-letters", "ann")]
        page = ann.of("letters").text
        assert "discard-dead-letters dead letter" in page
        assert "because" in page

    @pytest.mark.parametrize("do", ["replay", "discard"])
    def test_a_reason_and_a_yes(self, ann, admin, do):
        """Without one of them nothing is changed."""
        one = put_aside(admin, {"id": 1, "name": "n1"})
        for more in ({"reason": " "}, {"sure": "no"}, {"sure": ""}):
            refused = ann.fill(ann.choose(do, [one]), "/actions/letters", **{**SURE, **more})
            assert (refused.status, who(admin), list(left(admin))) == (400, [], [one])
            assert "Nothing was changed" in refused.text

    @pytest.mark.parametrize("do", ["replay", "discard"])
    def test_no_choice_is_never_all(self, ann, admin, do):
        """A form without a letter of this query changes nothing."""
        one = put_aside(admin, {"id": 1, "name": "n1"})
        for ids in ([], ["0"], ["-1"], ["x"], ["99999999999999999999"], ["9999999999999999999"]):
            assert ann.send("/actions/letters", self._sure(ann, do, ids)).status in (400, 409), ids
            assert (list(left(admin)), who(admin)) == ([one], [])

    @staticmethod
    def _sure(ann, do, ids):
        fields = Filled(ann.of("letters").text).to("/actions/letters")
        more = [("do", do), ("step", "do"), *SURE.items(), *(("id", str(one)) for one in ids)]
        return [*fields, *more]

    def test_only_what_is_known_is_done(self, ann, admin):
        """Another word is refused."""
        one = put_aside(admin, {"id": 1, "name": "n1"})
        for do in ("", "drop", "discard-all"):
            assert ann.send("/actions/letters", self._sure(ann, do, [one])).status == 400
        assert list(left(admin)) == [one]

    def test_letters_of_another_query_are_not_reached(self, ann, admin, url):
        """An id that belongs to another sink is not found."""
        publish(url, 3, KAFKA, sink_name="public.others")
        other = put_aside(admin, {"id": 1, "name": "n1"}, sink_name="public.others")
        put_aside(admin, {"id": 2, "name": "n2"})
        refused = ann.send("/actions/letters", self._sure(ann, "discard", [other]))
        assert (refused.status, "DEAD_LETTER_NOT_FOUND" in refused.text) == (409, True)
        assert other in left(admin)

    def test_the_second_person_is_told_what_happened(self, site, ann, admin):
        """Of two who do the same at once, one does it, and the other reads who did it and why."""
        one = put_aside(admin, {"id": 1, "name": "n1"})
        people = [ann, sign_in(site, "bob")]
        pages = [person.choose("discard", [one]) for person in people]
        with ThreadPoolExecutor(2) as pool:
            told = list(
                pool.map(
                    lambda both: both[0].fill(both[1], "/actions/letters", **SURE), zip(people, pages, strict=True)
                )
            )
        assert sorted(answer.status for answer in told) == [200, 409]
        [(kind, person, _)] = who(admin)
        assert kind == "discard-dead-letters"
        second = next(answer for answer in told if answer.status == 409)
        assert f"Dead letter {one} was discarded by {person} at " in second.text

    def test_the_end_is_the_same_if_the_browser_goes_away(self, site, ann, admin, url):
        """A browser that goes away while the action waits for a lock: the action is done whole, and noted."""
        ids = [put_aside(admin, {"id": n, "name": f"n{n}"}) for n in range(3)]
        shown = ann.choose("discard", ids)
        fields = Filled(shown.text).to("/actions/letters")
        body = urlencode([(name, SURE.get(name, value)) for name, value in fields]).encode()
        with psycopg.connect(url) as holder:
            holder.execute("SELECT FROM pgonce.writers FOR UPDATE")
            line = socket.create_connection(("127.0.0.1", site.port))
            head = (
                f"POST /actions/letters HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nCookie: {ann.cookie}\r\n"
                f"Origin: http://127.0.0.1:{site.port}\r\nContent-Type: {FORM}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            line.sendall(head.encode() + body)
            until = time.monotonic() + 30
            waits = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            while admin.execute(waits).fetchone() == (0,):
                assert time.monotonic() < until
                time.sleep(0.02)
            line.close()
            assert len(left(admin)) == 3
        while left(admin):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert who(admin) == [("discard-dead-letters", "ann", "because")]

    def test_a_nul_and_other_bytes_in_every_field(self, ann, admin):
        """Each is refused in words, or escaped; the server does not fail, and nothing is changed but by its name."""
        one = put_aside(admin, {"id": 1, "name": "too long"})
        for odd in ("\0", "a\0b", "\ud800", "\x1b[2J", "\u202e", "x" * 5000):
            for name in ("query", "sink", "code", "id"):
                asked = {"query": QUERY, "sink": SINK, "id": "1", name: odd.encode("utf-8", "surrogatepass")}
                for path in ("letters", "retire", "accept"):
                    assert ann.page(f"/{path}?{urlencode(asked)}").status < 500, (path, name, odd[:5])
            fields = Filled(ann.choose("discard", [one]).text).to("/actions/letters")
            text = odd.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
            for name in ("query", "sink", "id", "do", "form", "sure"):
                sent = [(each, text if each == name else SURE.get(each, value)) for each, value in fields]
                told = ann.send("/actions/letters", sent)
                assert 400 <= told.status < 500, (name, odd[:5], told.status)
            # Only shown.
            assert ann.fill(ann.of("accept"), "/actions/accept", batch="9", reason=text).status == 200
        assert (left(admin)[one], who(admin)) == ({"id": 1, "name": "too long"}, [])
        assert ann.fill(ann.choose("discard", [one]), "/actions/letters", reason="a\0b\x1b", sure="yes").status == 200
        assert who(admin) == [("discard-dead-letters", "ann", "a\\x00b\\x1b")]

    def test_rows_that_are_hidden(self, url, admin):
        """With --hide-rows no row is shown; the rest can be done."""
        one = put_aside(admin, {"id": 1, "name": "Erika"}, message="Key (name)=(Erika) already exists.")
        with acting(url, with_rows=False) as site:
            ann = sign_in(site)
            assert "Erika" not in ann.of("letters").text
            assert ann.fill(ann.choose("discard", [one]), "/actions/letters", **SURE).status == 200
        assert left(admin) == {}


EVIL = "</textarea><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}\u202e\u0007\u2028"


class TestHostileText:
    def test_nothing_in_a_letter_becomes_markup(self, ann, admin, site):
        """Columns, values, codes and names full of markup and marks are text; what would hide is an escape."""
        put_aside(
            admin, {EVIL: EVIL, "name": {"base64": "AAA="}, "huge": "x" * 300_000},
            code=EVIL, message=EVIL, column_name=EVIL, target=EVIL, position=Jsonb({EVIL: EVIL}),
        )  # fmt: skip
        [one] = left(admin)
        bob = sign_in(site, "<b>bob</b>\u202e")
        pages = [bob.of("letters"), bob.choose("discard", [one]), bob.choose("replay", [one])]
        pages.append(bob.fill(pages[1], "/actions/letters", reason=EVIL, sure="yes"))
        pages.append(bob.of("letters"))
        assert left(admin) == {}
        for page in pages:
            body = page.text.partition("<main>")[2]
            assert "<script" not in body
            assert "<img" not in body
            assert "<b>bob" not in body.replace("<b>&lt;b&gt;bob", "")
            assert ">49<" not in body
            assert not re.search(r"\son\w+=[^;&]*[\"']", re.sub(r"&[^;]+;", "", body).replace("onerror=alert(2)", ""))
        assert "\\u202e" in pages[0].text


class TestSink:
    def test_retired(self, site, ann, admin):
        """It wants the query's name; the ledger has the person; the second one is told who was quicker."""
        page = ann.of("retire")
        assert "it can never publish again" in page.text
        assert ann.fill(page, "/actions/retire", reason="moved", sure="yes").status == 400
        assert who(admin) == []
        people = [ann, sign_in(site, "bob")]
        pages = [person.of("retire") for person in people]
        with ThreadPoolExecutor(2) as pool:
            told = list(
                pool.map(
                    lambda both: both[0].fill(both[1], "/actions/retire", reason="moved", sure=QUERY[:8]),
                    zip(people, pages, strict=True),
                )
            )
        assert sorted(answer.status for answer in told) == [200, 409]
        [(kind, person, reason)] = who(admin)
        assert (kind, reason) == ("retire", "moved")
        second = next(answer for answer in told if answer.status == 409)
        assert f"retired by {person} at " in second.text
        page = ann.of("retire")
        assert (page.status, "WRITER_GONE" in page.text) == (409, True)

    def test_accepted(self, url, store, admin, tmp_path):
        """Doctor's verdict is shown before; then what it would do; then the ledger has it, once."""
        admin.execute("DELETE FROM pgonce.writers")
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(8, 9), (7, 8))
        (checkpoint / "state").mkdir()
        history(url, 5, checkpoint_location=str(checkpoint))
        with acting(url) as site:
            ann, bob = sign_in(site), sign_in(site, "bob")
            page = ann.of("accept")
            assert "GAP" in page.text
            assert "Next start: batch 9" in page.text
            wrong = ann.fill(page, "/actions/accept", batch="8", reason="restored")
            assert (wrong.status, "ACCEPT_NOT_NEEDED" in wrong.text) == (409, True)
            assert ann.fill(page, "/actions/accept", batch="9; x", reason="restored").status == 400
            shown = [each.fill(page_of, "/actions/accept", batch="9", reason="restored on purpose")
                     for each, page_of in ((ann, page), (bob, bob.of("accept")))]  # fmt: skip
            assert "would be refused as GAP" in shown[0].text
            assert who(admin) == []
            assert ann.fill(shown[0], "/actions/accept", sure="yes").status == 400
            done = ann.fill(shown[0], "/actions/accept", sure="orders")
            assert done.status == 200
            again = bob.fill(shown[1], "/actions/accept", sure="orders")
            assert (again.status, "accepted by ann at " in again.text) == (409, True)
        assert who(admin) == [("accept", "ann", "restored on purpose")]

    def test_where_the_checkpoint_cannot_be_seen(self, ann):
        """The page says that doctor cannot tell, and where to ask."""
        page = ann.of("accept")
        assert page.status == 200
        assert "Doctor cannot tell what happens at the next start" in page.text


def documented(role):
    """What docs/security.md grants a role that may only read, and one that acts, and what append needs."""
    reads = sections((DOCS / "security.md").read_text(), 2)["Roles and least privilege"]
    named = [
        block.replace(name, role) for name in ("viewer", "operator") for block in sql_blocks(reads) if name in block
    ]
    return ";\n".join([*named, f"GRANT INSERT ON events TO {role}"])


class TestRole:
    @pytest.fixture
    def role(self, admin):
        """A role that may not do anything yet."""
        name = f"acting_{os.getpid()}"
        admin.execute(f"CREATE ROLE {name}".encode())
        yield name
        admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())

    @pytest.fixture
    def as_role(self, url, role):
        """A connection string whose sessions are those of the role."""
        return f"{url}{'&' if '?' in url else '?'}options=-crole%3D{role}"

    def test_without_the_right(self, url, as_role, admin, role):
        """A streaming role lacks it: the answer says in words what, and what to grant."""
        for statement in grants(role):
            admin.execute(statement.encode())
        one = put_aside(admin, {"id": 1, "name": "n1"})
        with acting(url, as_role=as_role) as site:
            ann = sign_in(site)
            told = ann.fill(ann.choose("discard", [one]), "/actions/letters", **SURE)
            assert (told.status, "DEAD_LETTERS_NOT_PERMITTED" in told.text) == (403, True)
            assert "grant this role SELECT, UPDATE and DELETE" in told.text
            assert "permission denied" in ann.choose("replay", [one]).text
            admin.execute(f"REVOKE INSERT ON pgonce.interventions FROM {role}".encode())
            told = ann.fill(ann.of("retire"), "/actions/retire", reason="moved", sure="orders")
            assert (told.status, "permission denied" in told.text) == (403, True)
        assert (list(left(admin)), who(admin)) == ([one], [])
        assert admin.execute("SELECT retired_at FROM pgonce.writers").fetchone() == (None,)

    def test_with_the_rights_that_are_documented(self, url, as_role, admin, role):
        """It can do all of it, and the ledger has the person."""
        admin.execute(documented(role).replace("DATABASE shop", f"DATABASE {admin.info.dbname}").encode())
        ids = [put_aside(admin, {"id": n, "name": f"n{n}"}) for n in range(2)]
        with acting(url, as_role=as_role) as site:
            ann = sign_in(site)
            assert ann.fill(ann.choose("replay", ids[:1]), "/actions/letters", **SURE).status == 200
            assert ann.fill(ann.choose("discard", ids[1:]), "/actions/letters", **SURE).status == 200
            assert ann.fill(ann.of("retire"), "/actions/retire", reason="moved", sure="orders").status == 200
        kinds = ["replay-dead-letters", "discard-dead-letters", "retire"]
        assert [one[:2] for one in who(admin)] == [(kind, "ann") for kind in kinds]


def test_links_from_the_page_of_a_query(url, admin, ann, site):
    """With actions there are links; without there are none."""
    put_aside(admin, {"id": 1, "name": "n1"})
    site.look()
    with_actions = site.query(QUERY).text
    for name in ("letters", "accept", "retire"):
        [link] = re.findall(rf'href="(/{name}\?[^"]*)"', with_actions)
        assert ann.page(link.replace("&amp;", "&")).status == 200
    with served(url) as other:
        text = other.query(QUERY).text
    assert "/letters?" not in text
    assert "/retire?" not in text


def test_an_unknown_query(ann: Person):
    """It is a 404 in words, whoever asks."""
    for name in ("letters", "retire", "accept"):
        assert ann.of(name, sink="nowhere").status == 404


def test_examples_in_docstrings():
    """What the docstrings show is so."""
    assert doctest.testmod(actions).failed == 0
    assert doctest.testmod(decisions).failed == 0
