"""What the tests of this folder share."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.store import OffsetsStore


@pytest.fixture
def store(url):
    """The store of a database that has an empty ledger."""
    ensure_ledger(url)
    return OffsetsStore(url)
