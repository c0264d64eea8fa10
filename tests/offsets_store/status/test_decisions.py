"""What people decided is told in words, and an error goes without them where they may not be read."""

from __future__ import annotations

import doctest
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.dead_letters import put_aside
from support.ledger_history import KAFKA, publish

from pgonce.dead_letters.chosen_letters import chosen_letters, discard_letters
from pgonce.offsets_store.errors import NotFoundError
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.status import decisions
from pgonce.offsets_store.status.decisions import decisions_on_letters


@pytest.fixture
def letter(url, store, admin):
    """The id of a letter of the query ``orders``."""
    publish(url, 3, KAFKA)
    return put_aside(admin, {}, row_data='{"name": "x", "price": 1.10}')


def choice(url, letter):
    """The letter, chosen."""
    return chosen_letters(url, "orders", ids=[letter])


def test_a_decision_tells_its_role_its_time_and_its_reason(url, letter):
    """The database role, the time, and the reason in one line."""
    discard_letters(choice(url, letter), url, reason=" spam\nmore ")
    with reading(url) as connection:
        (discarded,) = decisions_on_letters(connection, [letter], ["discard-dead-letters"])
    assert discarded.says.startswith(f"discarded by role {discarded.made_by} at 20")
    assert discarded.says.endswith(" UTC: spam\\nmore")


def test_a_letter_that_is_gone(url, letter):
    """The error says what became of it; of one that was never there, nothing."""
    discard_letters(choice(url, letter), url, reason="spam")
    with pytest.raises(NotFoundError, match=rf" {letter} .* UTC: spam\b"):
        discard_letters(choice(url, letter), url, reason="spam")
    with pytest.raises(NotFoundError) as found:
        discard_letters(choice(url, letter + 1), url, reason="spam")
    assert "spam" not in found.value.what


def test_of_two_people_the_second_reads_what_happened(url, letter, admin):
    """Of two who discard a letter at once, one does it, and the other reads that it was done and why."""
    chosen = choice(url, letter)

    def told(reason):
        try:
            discard_letters(chosen, url, reason=reason)
        except NotFoundError as error:
            return error.what
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = [error for error in pool.map(told, ("spam", "spam")) if error]
    assert [f"Dead letter {letter} was discarded by role " in error for error in errors] == [True]
    assert admin.execute("SELECT count(*) FROM pgonce.interventions").fetchone() == (1,)


def test_a_role_that_may_not_read_them(url, letter, admin):
    """An error is told without them, and the transaction goes on."""
    discard_letters(choice(url, letter), url, reason="spam")
    with reading(url) as connection:
        assert decisions_on_letters(connection, [letter], ["discard-dead-letters"])
    admin.execute("ALTER TABLE pgonce.interventions RENAME TO elsewhere")
    with reading(url) as connection:
        assert decisions_on_letters(connection, [letter], ["discard-dead-letters"]) == []
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1


def test_the_examples_in_its_docstrings_hold():
    """What the docstrings show is so."""
    assert doctest.testmod(decisions).failed == 0
