"""Dead letters are given up by a person, with a reason, in the transaction that notes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.dead_letters import letters, put_aside
from support.recoveries import noted

from pgonce.dead_letters.chosen_letters import chosen_letters, discard_letters
from pgonce.offsets_store.errors import LedgerError, OffsetsError
from pgonce.offsets_store.ledger.migrations import grants

pytestmark = pytest.mark.usefixtures("past")


def discarded(url, *, reason="spam", dry_run=False, **choice):
    """Discard letters of the query; their ids."""
    found = discard_letters(chosen_letters(url, "orders", **choice), url, reason=reason, dry_run=dry_run)
    return [letter.dead_letter_id for letter in found]


def test_discarded_letters_are_deleted_and_noted_with_the_reason(url, admin):
    """The ledger keeps who, why, which and how many; a dry run changes nothing."""
    ids = [put_aside(admin, {"id": number}) for number in range(3)]
    assert discarded(url, ids=ids[:2], dry_run=True) == ids[:2]
    assert (letters(admin), noted(admin)) == (ids, [])
    assert discarded(url, ids=ids[:2], reason=" spam ") == ids[:2]
    details = {"dead_letters": 2, "ids": ids[:2], "targets": {"public.events": 2}}
    assert (letters(admin), noted(admin)) == (ids[2:], [("discard-dead-letters", None, "spam", details)])
    assert discarded(url) == ids[2:]
    assert discarded(url) == []
    assert len(noted(admin)) == 2


def test_more_than_one_statement_has_parameters(url, admin):
    """A statement takes 65,535 of them, and a night of bad rows makes more letters."""
    put_aside(admin, {"id": 1})
    columns = "query_id, sink_name, batch_id, target, position, row_data, column_name, code, message, destination"
    admin.execute(
        f"INSERT INTO pgonce.dead_letters ({columns}) "
        f"SELECT {columns} FROM pgonce.dead_letters, generate_series(1, 65600)".encode()
    )
    assert len(discarded(url)) == 65601
    assert letters(admin) == []


def test_an_id_that_is_not_there(url, admin):
    """Then none is deleted."""
    one = put_aside(admin, {"id": 1})
    with pytest.raises(OffsetsError, match="DEAD_LETTER_NOT_FOUND") as error:
        discarded(url, ids=[one, one + 1])
    assert str(one + 1) in str(error.value)
    assert letters(admin) == [one]


def test_of_two_people_one_discards_it(url, admin):
    """Of two who discard a letter at once, one does it, and the other is told that it is gone; it is noted once."""
    one = put_aside(admin, {"id": 1})

    def told(reason):
        try:
            return discarded(url, reason=reason, ids=[one])
        except OffsetsError as error:
            return error.code

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(told, ("spam", "spam")))
    assert sorted(answers, key=str) == ["DEAD_LETTER_NOT_FOUND", [one]]
    assert len(noted(admin)) == 1


def test_a_role_that_may_only_write_letters(url, admin, login):
    """A streaming role can look, and is told what it would need to delete; nothing is noted."""
    admin.execute("; ".join(grants(login.user)).encode())
    one = put_aside(admin, {"id": 1})
    assert discarded(login.url, dry_run=True) == [one]
    with pytest.raises(LedgerError, match=r"\[LEDGER_NOT_PERMITTED\].* dead_letters.*decides by hand.*`security`"):
        discarded(login.url)
    assert (letters(admin), noted(admin)) == ([one], [])
    admin.execute(f"GRANT UPDATE, DELETE ON pgonce.dead_letters TO {login.user}".encode())
    assert discarded(login.url) == [one]
