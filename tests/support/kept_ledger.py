"""
A ledger and a checkpoint as the first release leaves them, kept so that every later version can be tried on them.

Runs in: pytest. Invariant: ``kept_ledger.json`` is never made again by newer code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from support.batches import make_planned_batch
from support.stopped_query import entry, write_checkpoint

from pgonce.offsets_store.ledger.migrations import MIGRATIONS
from pgonce.offsets_store.verdict.facts import PlannedBatch

KEPT = Path(__file__).with_suffix(".json")


def _kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text())


def kept_form() -> str:
    """The beginning of the hash of the SQL that made it."""
    return _kept()["form"]


def restore_kept_ledger(admin: psycopg.Connection) -> None:
    """
    Make the ledger in its old form, as a dump that is restored; the next process that uses it brings it up to date.
    """
    admin.execute("CREATE SCHEMA pgonce")
    admin.execute(MIGRATIONS[0].ddl.encode())
    with admin.transaction():
        admin.execute("SET CONSTRAINTS ALL DEFERRED")
        for table, rows in _kept()["tables"].items():
            columns = sql.SQL(", ").join(map(sql.Identifier, rows[0]))
            insert = sql.SQL(
                "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE "
                "SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, %s)"
            ).format(table=sql.Identifier("pgonce", table), columns=columns)
            admin.execute(insert, [Jsonb(rows)])
        # Its oids are those of another database.
        admin.execute("UPDATE pgonce.home SET written_in = 0")


def kept_checkpoint(folder: Path) -> Path:
    """The checkpoint of its query, in which batch 3 is done."""
    files = _kept()["checkpoint"]
    entries = {int(number): text for number, text in files["offsets"].items()}
    return write_checkpoint(folder / "checkpoint", entries, entries, files["query_id"])


def kept_batch(batch_id: int, run_id: str) -> PlannedBatch:
    """Batch N of its query, as Spark runs it on that checkpoint: 0 to 3 are the recorded ones."""
    files = _kept()["checkpoint"]
    texts = {batch_id: entry(batch_id), batch_id - 1: entry(batch_id - 1)}
    texts |= {int(number): text for number, text in files["offsets"].items()}
    return make_planned_batch(
        batch_id,
        run_id,
        query_id=files["query_id"],
        offset_log=texts[batch_id],
        previous_offset_log=texts[batch_id - 1] if batch_id else None,
    )
