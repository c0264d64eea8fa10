"""A migration that a later version might add to the ledger."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pgonce.offsets_store.ledger import migrations
from pgonce.offsets_store.ledger.migrations import FIRST, MIGRATIONS, NEWEST, Migration


@dataclass(frozen=True)
class MadeUp(Migration):
    """A migration whose SQL stands in no file."""

    sql: str = "SELECT"

    @property
    def ddl(self) -> str:
        """The SQL of this step."""
        return self.sql


def made_up(sql: str = "SELECT", least_reader: int = FIRST) -> MadeUp:
    """The one after the newest that there is."""
    return MadeUp(NEWEST + 1, least_reader, (), sql=sql)


def upgrade_pgonce(monkeypatch: pytest.MonkeyPatch, step: Migration) -> None:
    """Let this process be one of a later version, which has one more migration and has seen no ledger yet."""
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, step))
    monkeypatch.setattr(migrations, "NEWEST", step.version)
    monkeypatch.setattr(migrations, "ledgers_seen", set())
