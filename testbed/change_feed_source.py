"""
The history of a table in another user's database.

Pure: a seed makes the same history every time. Invariant: changes come in transactions, and the LSN grows with each
statement; so the last change of a key by LSN tells the final state of its row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Literal, NamedTuple

COLUMNS = "id bigint PRIMARY KEY, customer text, amount numeric(12,2), note text, updated_at timestamptz"
UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium sends for a large value that an update left as it was."""

Identity = Literal["default", "full"]
Op = Literal["r", "c", "u", "d"]

_BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_FIRST_LSN = 24_000_000
_FIRST_TRANSACTION = 700
# Postgres stores a text of more than two kilobytes apart from its row, unless it can be compressed.
_LARGE = 2_500
_CUSTOMERS = ("Ada", "Zoë", 'O"Neil', "D'Arcy", "back\\slash", "two\nlines", "tab\t", "", "ナ", "null", None)
_COPIES = 0.05


class Row(NamedTuple):
    """A row of the table; equal to the tuple that psycopg reads."""

    id: int
    customer: str | None
    amount: Decimal | None
    note: str | None
    updated_at: datetime


class Change(NamedTuple):
    """
    What happened to one key: ``before`` and ``after`` are the whole rows, whatever the table's replica identity.

    :ivar op: read by the snapshot, created, updated, deleted.
    :ivar lsn: that of the statement's WAL record, which all rows of a COPY share.
    :ivar begin_lsn: that of its transaction; None in the snapshot.
    :ivar snapshot: ``first``, ``true`` and ``last`` in the snapshot, and then ``false``.
    :ivar note_unread: whether ``note`` was large and left as it was.
    :ivar other_key: of a primary key update, which is a delete and a create, the key of the other one.
    """

    op: Op
    key: int
    before: Row | None
    after: Row | None
    identity: Identity
    transaction: int
    lsn: int
    begin_lsn: int | None
    committed_at: datetime
    snapshot: str = "false"
    note_unread: bool = False
    other_key: int | None = None


class _Keys:
    """A set of keys from which one is drawn as quickly as it is put in."""

    def __init__(self, keys: Iterator[int] | range) -> None:
        self._keys = list(keys)
        self._places = {key: place for place, key in enumerate(self._keys)}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int | None) -> bool:
        return key in self._places

    def add(self, key: int) -> None:
        self._places[key] = len(self._keys)
        self._keys.append(key)

    def remove(self, key: int) -> None:
        place, last = self._places.pop(key), self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._places[last] = place

    def draw(self, chosen: random.Random) -> int:
        return self._keys[int(chosen.random() * len(self._keys))]


@dataclass
class SourceHistory:
    """A table's history; its settings are those of :class:`change_feed.ChangeFeed`, and ``rows`` is its state."""

    seed: int
    keys: int
    events: int
    deletes: float
    key_changes: float
    again: float
    large_notes: float
    identity: Identity
    rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing has happened yet. :raises ValueError: if there are too few keys."""
        if self.keys < 2:
            raise ValueError("A feed needs two keys or more: one in the snapshot, and one to come.")
        self._chosen = random.Random(self.seed)
        self._live, self._free = _Keys(range(0)), _Keys(range(1, self.keys + 1))
        self._last: int | None = None
        self._lsn, self._begin_lsn = _FIRST_LSN, 0
        self._transaction, self._now = _FIRST_TRANSACTION, _BEGIN

    def changes(self) -> Iterator[Change]:
        """All of them; to be asked for once."""
        yield from self._snapshot()
        left = self.events
        while left:
            changes = self._one_transaction(left)
            left -= len(changes)
            yield from changes

    def _snapshot(self) -> Iterator[Change]:
        for key in range(1, self.keys // 2 + 1):
            self._put(self._new_row(key))
        for number, row in enumerate(list(self.rows.values())):
            place = "last" if number == len(self.rows) - 1 else "first" if number == 0 else "true"
            yield self._change("r", row.id, None, row)._replace(begin_lsn=None, snapshot=place, committed_at=self._now)

    def _one_transaction(self, most: int) -> list[Change]:
        self._transaction += 1
        self._now += timedelta(microseconds=self._chosen.randrange(1, 50_000))
        self._lsn += 56
        self._begin_lsn = self._lsn
        least_free = min(most, len(self._free), 4)
        if least_free > 1 and self._chosen.random() < _COPIES:
            changes = self._copy(self._chosen.randrange(2, least_free + 1))
        else:
            changes = []
            size = min(most, self._chosen.randrange(1, 5))
            while len(changes) < size:
                changes += self._one_statement(size - len(changes))
        self._lsn += 48
        return [change._replace(committed_at=self._now) for change in changes]

    def _copy(self, rows: int) -> list[Change]:
        self._lsn += 200
        return [self._insert() for _ in range(rows)]

    def _one_statement(self, most: int) -> list[Change]:
        self._lsn += self._chosen.randrange(40, 400, 8)
        kind = self._chosen.random()
        if not self._live or (self._free and kind < self.deletes):
            return [self._insert()]
        if kind < 2 * self.deletes or not self._free:
            return [self._delete(self._draw(self._live))]
        if kind < 2 * self.deletes + self.key_changes and most > 1:
            return self._change_key(self._draw(self._live), self._draw(self._free))
        return [self._update(self._draw(self._live))]

    def _insert(self) -> Change:
        key = self._draw(self._free)
        self._put(self._new_row(key))
        return self._change("c", key, None, self.rows[key])

    def _delete(self, key: int) -> Change:
        return self._change("d", key, self._take(key), None)

    def _update(self, key: int) -> Change:
        before = self.rows[key]
        new = self._new_row(key)
        after = new if self._chosen.random() < 0.4 else new._replace(note=before.note)
        self.rows[key], self._last = after, key
        unread = after.note is not None and len(after.note) >= _LARGE and after.note == before.note
        return self._change("u", key, before, after)._replace(note_unread=unread)

    def _change_key(self, old: int, new: int) -> list[Change]:
        before = self._take(old)
        # It also has a new note: an unread one would be lost with the row of the old key, for every sink there is.
        self._put(self._new_row(new))
        after = self.rows[new]
        delete, create = self._change("d", old, before, None), self._change("c", new, None, after)
        return [delete._replace(other_key=new), create._replace(other_key=old)]

    def _put(self, row: Row) -> None:
        self._free.remove(row.id)
        self._live.add(row.id)
        self.rows[row.id], self._last = row, row.id

    def _take(self, key: int) -> Row:
        self._live.remove(key)
        self._free.add(key)
        self._last = key
        return self.rows.pop(key)

    def _draw(self, keys: _Keys) -> int:
        # People change what they have just changed: a row is deleted and comes back, or is updated twice.
        if self._last is not None and self._last in keys and self._chosen.random() < self.again:
            return self._last
        return keys.draw(self._chosen)

    def _new_row(self, key: int) -> Row:
        chance = self._chosen.random
        self._now += timedelta(microseconds=1)
        amount = None if chance() < 0.05 else Decimal(int(chance() * 2_000_000) - 100_000).scaleb(-2)
        customer = _CUSTOMERS[int(chance() * len(_CUSTOMERS))]
        return Row(key, customer, amount, self._new_note(), self._now)

    def _new_note(self) -> str | None:
        kind = self._chosen.random()
        if kind < self.large_notes:
            return f"{self._chosen.getrandbits(_LARGE * 4):0{_LARGE}x}"
        return None if kind > 0.95 else f"note {int(self._chosen.random() * 1_000_000)}"

    def _change(self, op: Op, key: int, before: Row | None, after: Row | None) -> Change:
        # When it was committed is known at the end of its transaction.
        return Change(op, key, before, after, self.identity, self._transaction, self._lsn, self._begin_lsn, _BEGIN)
