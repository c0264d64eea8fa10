"""
A connection string together with the source of its password.

Covers: offsets_store.postgres.postgres_url
"""

from __future__ import annotations

import copy
import pickle

import pytest

from pgonce import Login, PostgresUrl
from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.postgres.connect import engine_for


def test_it_is_a_connection_string_and_two_are_equal_only_if_their_sources_are():
    """So a pool, and what is remembered of a ledger, is never shared between two sources."""
    plain, one, other = PostgresUrl("host=x"), PostgresUrl("host=x", "a:b"), PostgresUrl("host=x", "a:c")
    assert plain == "host=x"
    assert hash(plain) == hash("host=x")
    assert len({plain, "host=x", one, other, PostgresUrl("host=x", "a:b")}) == 3
    assert one != "host=x"
    assert [one].count("host=x") == 0
    assert engine_for(one) is engine_for(PostgresUrl("host=x", "a:b"))
    assert engine_for(one) is not engine_for("host=x")


def test_it_travels_with_its_source():
    """Spark pickles settings for workers, and the other process asks the same source."""
    url = PostgresUrl("host=x", "a:b")
    for came in (pickle.loads(pickle.dumps(url)), copy.deepcopy(url), PostgresUrl(url)):
        assert (came, came.password_from) == (url, "a:b")
        assert type(came) is PostgresUrl
    assert PostgresUrl(url, "c:d").password_from == "c:d"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("", "no_colon"), "BAD_OPTION"),
        (("", "a:b()"), "BAD_OPTION"),
        (("", "a.b:c:d"), "BAD_OPTION"),
        (("", "lambda login: 'x'"), "BAD_OPTION"),
        (("", "zq7!"), "BAD_OPTION"),
        (("postgresql://u:zq7@h/d", "a:b"), "CLASHING_OPTIONS"),
        (("host=h password=zq7", "a:b"), "CLASHING_OPTIONS"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(given, code):
    """Nothing is called or run to find out, and no password is shown."""
    with pytest.raises(ConfigurationError, match=f"{code}.*passwordFrom") as refused:
        PostgresUrl(*given)
    assert "zq7" not in str(refused.value)
    assert refused.value.__context__ is None


def test_a_login_says_who_logs_in_where_and_nothing_else():
    """What a function is told holds no secret, and shows whether the password before was refused."""
    assert vars(Login("h", 1, "u", "d")) == {"host": "h", "port": 1, "user": "u", "dbname": "d", "refused": False}
