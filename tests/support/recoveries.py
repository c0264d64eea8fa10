"""A past of batches in the ledger, a recovery of it that waits for nothing, and what came of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from support.batches import make_batch
from support.ledger_history import QUERY, publish
from support.stopped_query import entries

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.ledger.lock import lock_writer_in_tx
from pgonce.offsets_store.ledger.session import reading, writing
from pgonce.offsets_store.verdict.decide import Verdict, decide
from pgonce.offsets_store.verdict.facts import Batch, Remedies
from pgonce.recovery.read_stopped_query import read_sinks
from pgonce.recovery.recover import Recovery, recover_checkpoint
from pgonce.recovery.stopped_query import SinkFacts


def history(url: str, last: int, texts: Mapping[int, str] | None = None, **identity: Any) -> Batch:
    """Publish batches 0 to ``last`` with their entries."""
    texts = {**entries(*range(last + 1)), **(texts or {})}
    for number in range(last + 1):
        end = parse_offset_log(texts[number]).offsets
        batch = publish(url, number, end, offset_log=texts[number], **identity)
    return batch


def recover_at_once(checkpoint: Path, url: str, **options: Any) -> Recovery:
    """Recover at once: what the test has written just now does not mean that the query runs."""
    return recover_checkpoint(str(checkpoint), url, quiet_seconds=0, **options)


def only_sink(url: str, query_id: str = QUERY) -> SinkFacts:
    """The sink of a query that has one."""
    with reading(url) as connection:
        (sink,) = read_sinks(connection, query_id)
    return sink


def bring_back(checkpoint: str | Path) -> None:
    """Bring back by hand what the newest recovery has replaced, as page `recovering` says."""
    kept = max((Path(checkpoint) / "pgonce-kept").iterdir())
    for folder in kept.iterdir():
        if folder.is_dir():
            shutil.copytree(folder, Path(checkpoint) / folder.name, dirs_exist_ok=True)
    for file in json.loads((kept / "manifest.json").read_text())["files"]:
        if file["before"] is None:
            (Path(checkpoint) / file["name"]).unlink(missing_ok=True)


def verdict(url: str, checkpoint: Path, batch_id: int, run_id: str, *, sink_name: str = "public.orders") -> Verdict:
    """What a commit of this run would say to the batch that ``offsets/`` gives this number."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text()
    before = (checkpoint / "offsets" / str(batch_id - 1)).read_text()
    batch = make_batch(
        batch_id,
        run_id,
        query_id=QUERY,
        sink_name=sink_name,
        offset_log=text,
        previous_offset_log=before,
        start=parse_offset_log(before).offsets,
        end=parse_offset_log(text).offsets,
    )
    with writing(url) as connection:
        return decide(lock_writer_in_tx(connection, batch, None).ledger, batch, Remedies())


def noted(observer: psycopg.Connection) -> list[tuple[Any, ...]]:
    """The interventions, in order: kind, batch, reason, details."""
    return observer.execute(
        "SELECT kind, batch_id, reason, details FROM pgonce.interventions ORDER BY intervention_id"
    ).fetchall()
