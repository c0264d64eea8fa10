"""An error's text says all: only text survives the trip through Spark's JVM."""

from __future__ import annotations

import pickle

import pytest

from pgonce.offsets_store import errors
from pgonce.offsets_store.errors import ConfigurationError, ConnectError, PgonceError, bad_option, without_its_words

SENTENCES = ("CODE", "It happened.", "Nothing was written.", "Do this.")
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PgonceError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_the_same_on_the_other_side_of_a_worker(kind):
    """Code, what happened, what it means for the data and what to do next, in this order; and the kind stays."""
    error = kind(*SENTENCES)
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) == "[CODE] It happened. Nothing was written. Help: Do this."
    assert type(again) is kind
    assert (again.code, again.what, again.data, again.remedy) == SENTENCES


def test_an_error_may_pass_only_where_that_is_said():
    """Without it, nobody tries again what would fail again."""
    assert pickle.loads(pickle.dumps(ConnectError(*SENTENCES, may_pass=True))).may_pass
    assert not ConnectError(*SENTENCES).may_pass


def test_an_option_is_refused_before_any_row_moves():
    """The error is of the family of configuration, and says that nothing was written."""
    error = bad_option("BAD_OPTION", "mode=x is not a way to write.", "Use append.")
    assert isinstance(error, ConfigurationError)
    assert str(error) == "[BAD_OPTION] mode=x is not a way to write. Nothing was written. Help: Use append."


@pytest.mark.parametrize("misplaced", ["postgresql://u:zq7secret@h/d", "host=h password=zq7secret"])
def test_a_connection_string_in_a_wrong_place_is_shown_without_its_password(misplaced):
    """A user may have written it in the place of an option's name, a table's, or a mode."""
    error = bad_option("UNKNOWN_OPTION", f"There is no option {misplaced!r}.", "Use append.")
    assert "h" in error.what
    assert "zq7secret" not in f"{error} {error!r} {error.what} {pickle.loads(pickle.dumps(error))}"


# A value, which no line of the traceback has: those show the source.
ALICE = "Alice"


def refuse(name):
    """Raise an error that shows a row, as psycopg's do."""
    raise ValueError(f"Key (name)=({name}) already exists")


def test_an_error_without_its_words_shows_no_row():
    """Its kind and its place are there to look into, and what it says is not."""
    with pytest.raises(ValueError, match=ALICE) as raised:
        refuse(ALICE)
    said = without_its_words(raised.value)
    assert said.startswith("ValueError\n")
    assert "in refuse" in said
    assert ALICE not in said
