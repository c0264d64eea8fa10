"""What the tests of the stored offsets, of recoveries and of the command share."""

from __future__ import annotations

import pytest
from support.recoveries import history
from support.stopped_query import entries, write_checkpoint
from typer.testing import CliRunner

from pgonce.command_line import app
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.store import OffsetsStore


@pytest.fixture
def store(url):
    """The store of a database that has an empty ledger."""
    ensure_ledger(url)
    return OffsetsStore(url)


@pytest.fixture
def pgonce(url, monkeypatch):
    """Run `pgonce` on the test's database, and give its result."""
    monkeypatch.setenv("PGONCE_URL", url)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def behind(url, tmp_path):
    """A checkpoint that asynchronous progress tracking left sparse at batch 6; the ledger is at 9."""
    history(url, 9)
    return write_checkpoint(tmp_path / "ckpt", entries(0, 1, 6), (0, 1, 6))


@pytest.fixture
def ahead(url, tmp_path):
    """A checkpoint at batch 8, of which a restored database knows batches 0 to 5."""
    history(url, 5)
    return write_checkpoint(tmp_path / "ckpt", entries(*range(9)), range(9))
