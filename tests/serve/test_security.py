"""Which requests are refused, and what each answer tells the browser."""

from __future__ import annotations

import pytest
from support.ledger_history import KAFKA, QUERY, publish
from support.served import served

PATHS = ("/", f"/queries/{QUERY}?sink=public.orders", "/metrics", "/healthz", "/page/pgonce.js", "/no")


@pytest.fixture
def site(url, store):
    """A server that is also reached as pgonce.example."""
    publish(url, 3, KAFKA)
    with served(url, names=("Pgonce.Example",)) as site:
        yield site


class TestHost:
    @pytest.mark.parametrize(
        "host",
        [
            "evil.example", "evil.example:9847", "127.0.0.1.evil.example", "localhost.evil.example",
            "pgonce.example@evil.example", "", "a b", "[::1",
        ],
    )  # fmt: skip
    def test_another_sites_name_is_refused(self, site, host):
        """A page of another site that reaches this process under its own name (DNS rebinding) reads nothing."""
        for path in PATHS:
            refused = site.get(path, host=host)
            assert refused.status in (400, 421)
            assert "orders" not in refused.text

    @pytest.mark.parametrize(
        "host", ["localhost:9847", "LOCALHOST", "10.1.2.3:9847", "[::1]:9847", "pgonce.example:443"]
    )
    def test_addresses_and_allowed_names_are_answered(self, site, host):
        """A name cannot be made to look like an address."""
        assert site.get("/", host=host).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_policy(site, path):
    """Nothing is loaded from elsewhere, nothing stands in the markup, no other site shows or reads it."""
    found = site.get(path).headers
    policy = dict(part.strip().partition(" ")[::2] for part in found["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert found["x-content-type-options"] == "nosniff"
    assert found["x-frame-options"] == "DENY"
    assert found["referrer-policy"] == "no-referrer"
    assert found["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in found
    assert found["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_changed_by_a_request(site, method):
    """Only GET and HEAD are answered."""
    assert site.get("/", method=method).status == 405
    assert site.get("/healthz", method="HEAD").status == 200
