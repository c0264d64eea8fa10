"""Checkpoints of stopped queries, as files and as facts, in the form in which Spark writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

from support.ledger_history import QUERY, RUN

from pgonce.offsets_store.checkpoint.log_entries import parse_commit_log, parse_offset_log
from pgonce.offsets_store.verdict.facts import Recorded
from pgonce.recovery.stopped_query import CheckpointFacts, SideLog, SinkFacts

COMMIT = 'v1\n{"nextBatchWatermarkMs":7}'
NOVEMBER = datetime(2026, 11, 20, tzinfo=timezone.utc)
ATTEMPT = UUID("99999999-1111-4111-8111-111111111111")


def kafka(end: int) -> dict[str, Any]:
    """A Kafka offset of one topic with one partition."""
    return {"t": {"0": end}}


def entry(batch_id: int, *offsets: Any, planned: int = 0) -> str:
    """The text of ``offsets/<batch_id>``; ``planned`` tells batches of one number apart. Kafka at 10 rows a batch."""
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1000 * (batch_id + 1) + planned, "conf": {}}
    lines = offsets or (kafka(10 * (batch_id + 1)),)
    return "\n".join(["v1", *(json.dumps(line, separators=(",", ":")) for line in (metadata, *lines))])


def entries(*batch_ids: int) -> dict[int, str]:
    """Entries by number."""
    return {batch_id: entry(batch_id) for batch_id in batch_ids}


def checkpoint(
    offsets: Mapping[int, str], commits: Iterable[int] = (), *, commit: str = COMMIT, **facts: Any
) -> CheckpointFacts:
    """A checkpoint's facts; ``facts`` overrides its fields."""
    fields = {
        "location": "/checkpoints/orders",
        "query_id": QUERY,
        "checksums": frozenset(),
        "side_logs": {"0": SideLog(frozenset({0}), frozenset())},
        "initial": {"0": kafka(0)},
        "is_stateful": False,
        **facts,
    }
    return CheckpointFacts(
        offsets={number: parse_offset_log(text) for number, text in offsets.items()},
        commits={number: parse_commit_log(commit) for number in commits},
        **fields,
    )


def record(batch_id: int, text: str | None, positions: Any = None, end: Any = None) -> Recorded:
    """A batch's row; its end is what its text says, unless it is given."""
    said = parse_offset_log(text).offsets if text else None
    return Recorded(batch_id, RUN, ATTEMPT, None, end or said, text, positions)


def sink(records: Iterable[Recorded], **facts: Any) -> SinkFacts:
    """A sink's facts; ``facts`` overrides its fields."""
    stateful = facts.pop("stateful", False)
    by_id = {found.batch_id: replace(found, stateful=stateful) for found in records}
    last = max(by_id)
    fields = {
        "writer_id": 1,
        "query_id": QUERY,
        "sink_name": "public.orders",
        "query_name": "orders",
        "run_id": RUN,
        "last_batch_id": last,
        "end_offsets": by_id[last].end,
        "created_at": NOVEMBER,
        "updated_at": NOVEMBER,
        "last": by_id[last],
        **facts,
    }
    return SinkFacts(records=by_id, **fields)


def published_to(last: int, texts: Mapping[int, str] | None = None, **facts: Any) -> SinkFacts:
    """A sink that has published batches 0 to ``last`` with their own entries, or with ``texts``."""
    texts = texts or {}
    return sink([record(number, texts.get(number, entry(number))) for number in range(last + 1)], **facts)


def write_checkpoint(
    folder: Path, offsets: Mapping[int, str], commits: Iterable[int] = (), query_id: str = QUERY
) -> Path:
    """Write a checkpoint as Spark does on a local disk, with a checksum for each entry."""
    for name, text in {
        "metadata": f'{{"id":"{query_id}"}}',
        **{f"offsets/{number}": text for number, text in offsets.items()},
        **{f"commits/{number}": COMMIT for number in commits},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if "/" in name:
            path.with_name(f".{path.name}.crc").write_bytes(b"crc\x00\xff")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a checkpoint with their bytes, but for what is kept aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "pgonce-kept" not in path.parts
    }
