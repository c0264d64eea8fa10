"""Rows that a receiver does not keep travel inline if they fit: their executor may have no way to Postgres."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pyarrow as pa
import pytest
from support.committed_rows import STRUCT, ids
from support.data_source_with_rooms import commit_parcels, receiver_for
from support.ledger_history import QUERY, RUN
from support.received_batch import origin

from pgonce.offsets_store.errors import ConnectError
from pgonce.sink.data_source import task_writer
from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.task_writer import MicroBatch, TaskWriter
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.read_rows import AllRows

# A task calls once it holds 1 MiB, and may send 8 MiB inline.
CALLS, FITS, TOO_LARGE = 3, 12, 20
NO_WAY = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=1"


@pytest.fixture
def full(target, receiver_options, started_receivers):
    """A receiver that has started and can keep nothing, as on a full disk; and the options of its query."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("limits of another process are set on Linux only")
    options = receiver_options(inlineBytes=str(8 * 1024 * 1024), executorUrl=NO_WAY, retryTimeout="0")
    receiver = receiver_for(options, STRUCT)
    # From now on, a call is answered at once.
    receiver.dial().close()
    resource.prlimit(started_receivers[0].pid, resource.RLIMIT_FSIZE, (0, 0))
    return options, receiver


@pytest.fixture
def written(full, monkeypatch):
    """What a task hands to the commit that has so many rows of half a megabyte, as a partition's only attempt."""
    options, receiver = full

    def write(rows, partition_id=0):
        told = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": "1", "spark.jobGroup.id": RUN}
        context = SimpleNamespace(
            getLocalProperty=told.get, partitionId=lambda: partition_id, taskAttemptId=lambda: 7 + partition_id
        )
        monkeypatch.setattr(task_writer, "TaskContext", SimpleNamespace(get=lambda: context))
        batches = (
            pa.record_batch({"id": pa.array([100 * partition_id + one]), "name": pa.array(["x" * 500_000])})
            for one in range(rows)
        )
        return TaskWriter(options, AllRows(STRUCT), MicroBatch(origin().planned), offered(receiver)).write(batches)

    return write


@pytest.mark.parametrize("rows", [CALLS, FITS])
def test_what_fits_travels_inline_if_the_receiver_keeps_nothing(rows, written, full, target):
    """The first task has sent rows by the time it hears that; the second is told at once."""
    parcels = [written(rows), written(rows, 1)]
    assert [(parcel.rows, parcel.ways) for parcel in parcels] == [(rows, ("inline",))] * 2
    commit_parcels(full[0], encoded_columns(STRUCT), parcels, 1)
    assert ids(target) == [*range(rows), *range(100, 100 + rows)]


def test_what_does_not_fit_has_to_be_staged(written):
    """As without a receiver."""
    with pytest.raises(ConnectError):
        written(TOO_LARGE)
