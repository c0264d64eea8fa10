"""What people decided is told in words, also where the ledger knows no person yet, or may not be read."""

from __future__ import annotations

import pytest
from support.dead_letters import put_aside
from support.ledger_history import KAFKA, QUERY, publish

from pgonce.offsets_store.errors import NotFoundError
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.recovery.by_hand import retire_sink
from pgonce.offsets_store.recovery.dead_letters import chosen_letters, discard_letters
from pgonce.offsets_store.status.decisions import decisions_on_letters, newest_decisions

SINK = "public.orders"


@pytest.fixture
def letter(url, store, admin):
    """The id of a letter of the query ``orders``."""
    publish(url, 3, KAFKA)
    return put_aside(admin, {}, row_data='{"name": "x", "price": 1.10}')


def choice(url, letter):
    """The letter, chosen."""
    return chosen_letters(url, "orders", ids=[letter])


def test_who_and_why(url, letter, store):
    """A person, or the role if none is known; the newest first."""
    retire_sink("orders", url, reason=" moved. ", person="ann")
    discard_letters(choice(url, letter), url, reason="spam\nmore")
    with reading(url) as connection:
        discarded, retired = newest_decisions(connection, QUERY, SINK, 10)
        assert newest_decisions(connection, QUERY, SINK, 1) == [discarded]
    assert retired.says.startswith("retired by ann at 20")
    assert retired.says.endswith(" UTC: moved")
    assert discarded.says.startswith(f"discarded by role {discarded.made_by} at ")
    assert discarded.says.endswith("spam\\nmore")
    assert discarded.about == f"dead letter {letter}"


def test_a_letter_that_is_gone(url, letter):
    """The error says what became of it; of one that was never there, nothing."""
    discard_letters(choice(url, letter), url, reason="spam", person="ann")
    with pytest.raises(NotFoundError, match=rf"Dead letter {letter} was discarded by ann at .* UTC: spam\."):
        discard_letters(choice(url, letter), url, reason="spam")
    with pytest.raises(NotFoundError) as found:
        discard_letters(choice(url, letter + 1), url, reason="spam")
    assert "discarded by" not in found.value.what


def test_a_ledger_without_the_column(url, letter, admin):
    """Before version 102 it knows no person; decisions of roles are written and read as before."""
    admin.execute("ALTER TABLE pgonce.interventions DROP COLUMN person")
    admin.execute("DELETE FROM pgonce.schema_version WHERE version >= 102")
    retire_sink("orders", url, reason="gone")
    discard_letters(choice(url, letter), url, reason="spam")
    with reading(url) as connection:
        found = newest_decisions(connection, QUERY, SINK, 10)
    assert [(one.kind, one.person) for one in found] == [("discard-dead-letters", None), ("retire", None)]


def test_a_role_that_may_not_read_them(url, letter, admin):
    """An error is told without them, and the transaction goes on."""
    discard_letters(choice(url, letter), url, reason="spam")
    with reading(url) as connection:
        assert decisions_on_letters(connection, "pgonce.dead_letters", [letter], ["discard-dead-letters"])
    admin.execute("ALTER TABLE pgonce.interventions RENAME TO elsewhere")
    with reading(url) as connection:
        assert decisions_on_letters(connection, "pgonce.dead_letters", [letter], ["discard-dead-letters"]) == []
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
