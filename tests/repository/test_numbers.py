"""The times and bounds that the documents promise are those of the code."""

from __future__ import annotations

from pathlib import Path

from pgonce.offsets_store.ledger import failures
from pgonce.offsets_store.ledger.record import PRUNE_EVERY
from pgonce.offsets_store.postgres.connect import (
    DEFAULT_MAX_CONNECTIONS,
    FREE_CONNECTION_SECONDS,
    KEPT_CONNECTIONS,
    parse_url,
)
from pgonce.offsets_store.progress.heartbeats import BEAT_SECONDS, KEPT_RUNS
from pgonce.offsets_store.progress.listener import QUEUED_EVENTS
from pgonce.offsets_store.progress.stored_progress import KEPT_A_QUERY
from pgonce.recovery.fence import QUIET_SECONDS
from pgonce.recovery.recover import WAIT_SECONDS
from pgonce.sink.data_source.commit_parcels import SWEEP_SECONDS
from pgonce.sink.data_source.receiver.arrived import LONGEST_GUESS_SECONDS
from pgonce.sink.data_source.receiver.kept_rows import LEFT_FREE_BYTES
from pgonce.sink.foreach_batch.frame_rows import BEFORE_BEGIN_BYTES, IN_MEMORY_BYTES
from pgonce.sink.options.definitions import OPTIONS

MIB = 1024 * 1024
DOCS = Path(__file__).parents[2] / "docs"
TEXT = " ".join(" ".join(page.read_text() for page in DOCS.glob("*.md")).split())


def default(name):
    """The default of an option, by its argument."""
    return OPTIONS[name].default


NUMBERS = [
    ("`lockTimeout` seconds (30)", default("lock_timeout") == 30),
    ("`retryTimeout` (120)", default("retry_timeout") == 120),
    ("`retryTimeout` (120 s)", default("retry_timeout") == 120),
    (
        "with the defaults that is after two and a half minutes",
        default("lock_timeout") + default("retry_timeout") == 150,
    ),
    ("more than 16 MiB", BEFORE_BEGIN_BYTES == 16 * MIB),
    ("a thousand events wait", QUEUED_EVENTS == 1000),
    ("newest 1,000 of each query", KEPT_A_QUERY == 1000),
    ("The newest 100 of a query are kept", failures.KEPT_A_QUERY == 100),
    ("within two seconds or not at all", failures.LONGEST_SECONDS == 2),
    ("newest 20 runs of a query", KEPT_RUNS == 20),
    ("it says so every 15 seconds", BEAT_SECONDS == 15),
    ("pruned at every sixteenth", PRUNE_EVERY == 16),
    ("younger than 5 seconds", QUIET_SECONDS == 5),
    ("`recover_checkpoint` waits 15 seconds", WAIT_SECONDS == 15),
    ("`connect_timeout` (15 s", parse_url("")["connect_timeout"] == "15"),
    ("The pool has 64 connections at most", DEFAULT_MAX_CONNECTIONS == 64),
    ("keeps 4 of them open", KEPT_CONNECTIONS == 4),
    ("says so every 30 seconds (`CONNECTIONS_IN_USE`)", FREE_CONNECTION_SECONDS == 30),
    ("60 seconds after the last sweep", SWEEP_SECONDS == 60),
    ("beyond 64 MiB", IN_MEMORY_BYTES == 64 * MIB),
    ("leaves 1 GiB of it", LEFT_FREE_BYTES == 1024 * MIB),
    ("a transaction that has stood for 60 s", LONGEST_GUESS_SECONDS == 60),
]


def test_numbers_are_those_of_the_code():
    """The number that a page names is the one that the code has."""
    assert [words for words, of_the_code in NUMBERS if not of_the_code or words not in TEXT] == []
