"""
Rows of any columns, without Spark, and their commit.

Runs in: pytest. Invariant: they go through the commit that every way in uses, inline or staged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.rows import given_rows
from support.sent_rows import arrow_rows
from support.with_rooms import work_into

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import ATTEMPT_COLUMN, encoded_columns
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.options.destination import Destination
from pgonce.sink.staging import StagedRows, StagingTable
from pgonce.sink.writing.rows import Rows

Columns = Mapping[str, t.DataType]


def struct_of(columns: Columns) -> t.StructType:
    """Spark's columns."""
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def typed_rows(columns: Columns, rows: Sequence[Sequence[Any]]) -> Rows:
    """Rows that travelled in commit messages."""
    struct = struct_of(columns)
    return given_rows(
        encoded_columns(struct), len(rows), lambda: [CopyEncoder(struct).encode(arrow_rows(struct, rows))]
    )


def staged_rows(
    url: str, table: StagingTable, columns: Columns, rows: Sequence[Sequence[Any]], attempt: int = 3
) -> Rows:
    """Rows that an attempt of a task has staged."""
    # PySpark 3.5, on which `make matrix` runs, has no data sources written in Python.
    from pgonce.sink.data_source.stager import stage_rows

    struct = struct_of(columns)
    encoded = encoded_columns(struct)
    body = CopyEncoder(struct, extra={ATTEMPT_COLUMN: attempt}).encode(arrow_rows(struct, rows))
    stage_rows(url, table, encoded, [body])
    return given_rows(encoded, len(rows), list, StagedRows(table, ((attempt, len(rows)),)))


def commit_typed(
    url: str,
    number: int,
    to: Destination,
    columns: Columns,
    rows: Sequence[Sequence[Any]],
    *,
    staged: bool = False,
    query: str = "q1",
    lock_timeout: float = 2,
    retry_timeout: float = 0,
    not_encoded: tuple[UnfitRow, ...] = (),
) -> Verdict:
    """Commit batch ``number`` of a query; it also has those rows that are ``not_encoded``."""
    batch = make_planned_batch(number, query_id=query)
    table = StagingTable(query, to.table, batch.run_id, number)
    sent = staged_rows(url, table, columns, rows) if staged else typed_rows(columns, rows)
    settings = CommitSettings(url, Remedies(independent=True), lock_timeout=lock_timeout, retry_timeout=retry_timeout)
    return commit_batch(settings, batch, work_into(None, to, replace(sent, unfit=lambda: not_encoded)))
