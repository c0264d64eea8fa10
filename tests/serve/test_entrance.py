"""Who may act: signing in and out, what other sites and other people can send, and that no secret is told."""

from __future__ import annotations

import ipaddress
import logging
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from support.acting import FORM, SINK, TOKEN, Filled, Person, acting, settings, sign_in
from support.dead_letters import put_aside
from support.ledger_history import KAFKA, QUERY, publish
from support.served import served

from pgonce.serve import security
from pgonce.serve.security import Admission, Visitors

POSTS = ("/sign-in", "/sign-out", "/actions/letters", "/actions/retire", "/actions/accept")


@pytest.fixture
def admin(admin, url, store):
    """A query has published a batch, and put a row aside."""
    publish(url, 3, KAFKA)
    put_aside(admin, {"id": 1, "name": "n1"})
    return admin


@pytest.fixture
def site(url, admin):
    """A server that allows actions, and is also reached as pgonce.example."""
    with acting(url, names=("pgonce.example",)) as site:
        yield site


def untouched(admin) -> bool:
    """Whether nothing was changed."""
    counts = "SELECT (SELECT count(*) FROM pgonce.dead_letters), (SELECT count(*) FROM pgonce.interventions)"
    return admin.execute(counts).fetchone() == (1, 0)


def discarding(person: Person) -> list[tuple[str, str]]:
    """A form that discards the letter, as the page of this person would send it."""
    fields = Filled(person.of("letters").text).to("/actions/letters")
    return [*fields, ("do", "discard"), ("step", "do"), ("id", "1"), ("reason", "r"), ("sure", "yes")]


class TestSigningIn:
    def test_the_cookie(self, site):
        """No script reads it, no other site sends it, and it is only for this server."""
        page = site.get("/sign-in")
        found = Person(site).fill(page, "/sign-in", person="ann", token=TOKEN)
        cookie = found.headers["set-cookie"]
        for part in ("HttpOnly", "SameSite=strict", "Path=/"):
            assert part in cookie
        assert "Secure" not in cookie
        assert TOKEN not in cookie
        over_tls = {"origin": "https://pgonce.example", "host": "pgonce.example"}
        fields = [(name, {"person": "ann", "token": TOKEN}.get(name, value)) for name, value in
                  Filled(page.text).to("/sign-in")]  # fmt: skip
        found = site.get("/sign-in", method="POST", body=urlencode(fields).encode(), content_type=FORM, **over_tls)
        assert (found.status, "Secure" in found.headers["set-cookie"]) == (303, True)

    def test_another_token(self, site):
        """It is refused, and there is no cookie."""
        for token in ("", TOKEN[:-1], TOKEN + "x", "\u00e4" * 20):
            found = Person(site).fill(site.get("/sign-in"), "/sign-in", person="ann", token=token)
            assert (found.status, "set-cookie" in found.headers) == (403, False)
            assert "This is not the token" in found.text

    def test_without_a_name(self, site):
        """The ledger is to say who it was."""
        for name in ("", "  ", "x" * 101):
            found = Person(site).fill(site.get("/sign-in"), "/sign-in", person=name, token=TOKEN)
            assert (found.status, "set-cookie" in found.headers) == (400, False)

    def test_it_leads_back(self, site):
        """A page of actions asks to sign in first, and comes after that."""
        asked = Person(site).of("letters")
        assert asked.status == 303
        page = site.get(asked.headers["location"])
        found = Person(site).fill(page, "/sign-in", person="ann", token=TOKEN)
        assert found.headers["location"] == f"/letters?query={QUERY}&sink={SINK}"

    def test_it_leads_nowhere_else(self, site):
        """Another site cannot be the place to come back to."""
        for after in ("//evil.example", "/\\evil.example", "https://evil.example", "x", "/a\r\nb: c", ""):
            page = site.get(f"/sign-in?{urlencode({'after': after})}")
            found = Person(site).fill(page, "/sign-in", person="ann", token=TOKEN)
            assert (found.status, found.headers["location"]) == (303, "/")
            assert "b" not in found.headers

    def test_signing_out_is_forgetting(self, site, admin):
        """The same cookie is worth nothing afterwards."""
        ann = sign_in(site)
        fields = discarding(ann)
        assert ann.fill(ann.of("letters"), "/sign-out").status == 303
        assert ann.of("letters").status == 303
        assert ann.send("/actions/letters", fields).status == 403
        assert untouched(admin)

    def test_it_ends_by_itself(self, monkeypatch):
        """After its time, and if a hundred have signed in since."""
        visitors = Visitors(Admission(TOKEN), "")

        def asked(value):
            return Request({"type": "http", "headers": [(b"cookie", f"{visitors.cookie}={value}".encode())]})

        first = asked(visitors.sign_in("ann", TOKEN))
        assert visitors.of(first).person == "ann"
        last = [visitors.sign_in("bob", TOKEN) for _ in range(100)][-1]
        assert (visitors.of(first), visitors.of(asked(last)).person) == (None, "bob")
        monkeypatch.setattr(security, "_SESSION_SECONDS", 0)
        assert visitors.of(asked(visitors.sign_in("ann", TOKEN))) is None

    def test_under_a_path(self, url, admin):
        """Behind a proxy that shows it under a path, cookie, forms and links have that path."""
        with acting(url, root_path="/seen") as site:
            page = site.get("/sign-in?after=/letters")
            fields = [(name, {"person": "ann", "token": TOKEN}.get(name, value)) for name, value in
                      Filled(page.text).to("/seen/sign-in")]  # fmt: skip
            found = Person(site).send("/sign-in", fields)
            assert (found.status, found.headers["location"]) == (303, "/seen/letters")
            assert "Path=/seen" in found.headers["set-cookie"]
            ann = Person(site, found.headers["set-cookie"].partition(";")[0])
            fields = Filled(ann.of("letters").text).to("/seen/actions/letters")
            more = [("do", "discard"), ("step", "do"), ("id", "1"), ("reason", "r"), ("sure", "yes")]
            assert ann.send("/actions/letters", [*fields, *more]).status == 200
            assert ann.of("letters").status == 200
        assert not untouched(admin)


FROM_ELSEWHERE = (
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://127.0.0.1"},
    {"origin": "http://127.0.0.1:1"}, {"origin": "http://10.0.0.1:9847"}, {"origin": "http://localhost:9847"},
    {"origin": "http://pgonce.example.evil.example"}, {"origin": "http://evil.example/pgonce.example"},
    {"origin": "http://pgonce.example@evil.example"}, {"origin": "file://"},
    {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}, {"sec_fetch_site": "none"},
    {"content_type": "text/plain"}, {"content_type": "multipart/form-data; boundary=x"}, {"content_type": ""},
)  # fmt: skip


class TestOtherSites:
    def test_what_they_send_is_refused(self, site, admin):
        """Even with the right cookie and the right form: its Origin, its kind and Sec-Fetch-Site are not ours."""
        ann = sign_in(site)
        fields = discarding(ann)
        for headers in FROM_ELSEWHERE:
            assert ann.send("/actions/letters", fields, **headers).status in (403, 415), headers
            assert untouched(admin), headers
        assert ann.send("/actions/letters", fields).status == 200
        assert not untouched(admin)

    def test_without_origin(self, site, admin):
        """A program that sends none is refused, and so is a request with two."""
        ann = sign_in(site)
        body = urlencode(discarding(ann)).encode()
        refused = site.get("/actions/letters", method="POST", body=body, content_type=FORM, cookie=ann.cookie)
        assert (refused.status, untouched(admin)) == (403, True)

    def test_names_that_are_allowed_are_ours(self, site, admin):
        """A proxy may name itself in Host or not: the browser's Origin is the name that was allowed."""
        ann = sign_in(site)
        assert ann.send("/actions/letters", discarding(ann), origin="https://pgonce.example").status == 200
        assert not untouched(admin)

    def test_dns_rebinding(self, site, admin):
        """A name that was not allowed is not answered, whatever else is right."""
        ann = sign_in(site)
        body = urlencode(discarding(ann)).encode()
        headers = {"content_type": FORM, "cookie": ann.cookie, "origin": "http://evil.example:9847"}
        refused = site.get("/actions/letters", method="POST", body=body, host="evil.example:9847", **headers)
        assert (refused.status, untouched(admin)) == (421, True)

    def test_no_other_site_shows_the_pages(self, site):
        """They cannot stand in a frame, and nothing in them is a script of their own."""
        ann = sign_in(site)
        for page in (site.get("/sign-in"), ann.of("letters"), ann.of("letter", id=1), ann.of("retire")):
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
            assert "form-action 'self'" in page.headers["content-security-policy"]
            assert page.headers["x-frame-options"] == "DENY"
            assert page.headers["cache-control"] == "no-store"
            # With no-referrer, a browser would not say where a form comes from.
            assert page.headers["referrer-policy"] == "same-origin"
            assert page.text.count("<script") == 1
            assert "style=" not in page.text


class TestForms:
    def test_each_is_for_one_person_and_one_path(self, site, admin):
        """Another person's form, one for another path, an invented one and none are refused."""
        ann, bob = sign_in(site), sign_in(site, "bob")
        own = discarding(ann)
        given = [
            dict(discarding(bob))["form"],
            dict(Filled(ann.of("retire").text).to("/actions/retire"))["form"],
            dict(Filled(site.get("/sign-in").text).to("/sign-in"))["form"],
        ]
        for other in (*given, "0" * 64, "\u00e4", ""):
            fields = [(name, other if name == "form" else value) for name, value in own]
            assert ann.send("/actions/letters", fields).status == 403
        assert ann.send("/actions/letters", [one for one in own if one[0] != "form"]).status == 403
        assert untouched(admin)

    def test_nobody_who_is_not_signed_in(self, site, admin):
        """Without a cookie, or with an invented one, every path refuses."""
        ann = sign_in(site)
        for person in (Person(site), Person(site, ann.cookie.partition("=")[0] + "=invented")):
            for path in POSTS:
                assert person.send(path, discarding(ann)).status == 403, path
        assert untouched(admin)

    def test_more_than_can_be_sent(self, site, admin):
        """A form is of a bounded size, and of the same in parts."""
        ann = sign_in(site)
        assert ann.send("/actions/letters", [*discarding(ann), ("more", "x" * 9_000_000)]).status == 413
        assert untouched(admin)

    def test_only_post_changes_something(self, site, admin):
        """The same by GET does nothing."""
        ann = sign_in(site)
        for path in POSTS[1:]:
            assert ann.page(f"{path}?{urlencode(discarding(ann))}").status == 405, path
        assert untouched(admin)

    def test_nothing_is_posted_elsewhere(self, site, admin):
        """Only paths of actions take a POST."""
        ann = sign_in(site)
        for path in ("/", "/letters", "/metrics", "/actions", "/actions/letters/", "//actions/letters"):
            assert ann.send(path, discarding(ann)).status == 405, path
        assert untouched(admin)


def test_without_the_option_nothing_can_be_changed(url, admin):
    """Each path refuses every method but GET and HEAD, and there is no page of actions."""
    with served(url) as site:
        person = Person(site)
        for path in POSTS:
            assert person.send(path, [("id", "1")]).status == 405, path
            assert person.page(path).status == 404, path
        assert person.of("letters").status == 404


class TestProxy:
    HEADER = "X-Forwarded-User"

    def site(self, url, *networks):
        """A server that trusts a proxy there."""
        trusted = tuple(ipaddress.ip_network(one) for one in networks)
        return served(url, actions=settings(url, proxy_header=self.HEADER, proxies=trusted))

    def test_the_header_has_the_name(self, url, admin):
        """From the proxy's address it says who it is; the ledger keeps that."""
        with self.site(url, "10.0.0.0/8", "127.0.0.1") as site:
            ann = Person(site, headers={self.HEADER: "Ann Özil".encode().decode("latin-1")})
            assert "Sign out" not in ann.of("letters").text
            assert ann.send("/actions/letters", discarding(ann)).status == 200
            assert "Only the proxy" in site.get("/sign-in").text
        assert admin.execute("SELECT person FROM pgonce.interventions").fetchall() == [("Ann Özil",)]

    def test_without_a_name(self, url, admin):
        """The proxy did not say who it is."""
        with self.site(url, "127.0.0.1") as site:
            mine = discarding(Person(site, headers={self.HEADER: "ann"}))
            for headers in ({}, {self.HEADER: ""}, {self.HEADER: " "}, {self.HEADER: "x" * 101}, {"X-User": "ann"}):
                nobody = Person(site, headers=headers)
                assert nobody.of("letters").status == 303, headers
                assert nobody.send("/actions/letters", mine).status == 403, headers
        assert untouched(admin)

    def test_from_another_address_it_counts_for_nothing(self, url, admin):
        """Nobody but the proxy can send it, not even with what a proxy says of addresses."""
        with self.site(url, "10.1.2.3", "::1") as site:
            evil = {
                self.HEADER: "ann",
                "X-Forwarded-For": "10.1.2.3",
                "X-Real-IP": "10.1.2.3",
                "Forwarded": "for=10.1.2.3",
            }
            assert Person(site, headers=evil).of("letters").status == 303
            assert Person(site, headers=evil).send("/actions/letters", [("id", "1")]).status == 403
        assert untouched(admin)

    def test_an_address_in_its_other_form(self):
        """A socket for both kinds of addresses shows an address of IPv4 as one of IPv6."""
        trusted = Admission(proxy_header="X-User", proxies=(ipaddress.ip_network("10.1.2.0/24"),))
        for client, person in (("10.1.2.3", "ann"), ("::ffff:10.1.2.3", "ann"), ("::ffff:10.1.3.3", None)):
            asked = Request({"type": "http", "client": (client, 1), "headers": [(b"x-user", b"ann")]})
            found = Visitors(trusted, "").of(asked)
            assert (found and found.person) == person

    def test_a_form_is_for_one_person(self, url, admin):
        """Ann's form does not count if the proxy says that bob sends it."""
        with self.site(url, "127.0.0.1") as site:
            ann, bob = (Person(site, headers={self.HEADER: name}) for name in ("ann", "bob"))
            assert bob.send("/actions/letters", discarding(ann)).status == 403
        assert untouched(admin)


def test_no_secret_is_told(url, admin, caplog):
    """Neither the token, nor a cookie, nor a password is in a page, in JSON, in metrics, in an error or in the log."""
    caplog.set_level(logging.DEBUG)
    password = "s3cret-of-the-role"
    wrong = f"postgresql://nobody:{password}@127.0.0.1:1/nowhere"
    with acting(url, as_role=wrong) as site:
        ann = sign_in(site)
        told = [ann.of("letters"), ann.send("/actions/letters", [("form", "x")]), site.get("/sign-in")]
        told.append(Person(site).fill(site.get("/sign-in"), "/sign-in", person="ann", token="wrong " + TOKEN))
        told += [ann.page(path) for path in ("/", "/api/queries", f"/api/queries/{QUERY}", "/metrics", "/healthz")]
    assert told[0].status == 503
    secrets = (TOKEN, ann.cookie.partition("=")[2], password)
    for text in (*(answer.text for answer in told), caplog.text, repr(settings(url))):
        assert not [secret for secret in secrets if secret in text]
    assert url not in repr(settings(url))
