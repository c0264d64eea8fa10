"""The checkpoints of runs, inside the location of their query."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgonce.offsets_store.errors import RefusedBatch
from pgonce.real_time.start import new_checkpoint, query_id_of, refuse_unknown_past, remove_older


def test_a_query_keeps_its_id(tmp_path):
    """It is written at the first start, and read at all others; a query that ran in micro-batches has Spark's."""
    location = str(tmp_path / "query")
    assert query_id_of(location) == query_id_of(location)
    (tmp_path / "sparks").mkdir()
    (tmp_path / "sparks/metadata").write_text('{"id":"7c4b1a0a-8a0b-4a9a-9a6f-000000000001"}')
    assert query_id_of(str(tmp_path / "sparks")) == "7c4b1a0a-8a0b-4a9a-9a6f-000000000001"


def test_drivers_that_start_for_the_first_time_at_once_name_one_query(tmp_path):
    """The first id that is written stays, so that none of them is taken for another query at the next start."""
    for start in range(20):
        location = str(tmp_path / str(start))
        at_once = threading.Barrier(8)
        with ThreadPoolExecutor(8) as drivers:
            found = {one.result() for one in [drivers.submit(_id_after, at_once, location) for _ in range(8)]}
        assert found == {query_id_of(location)}


def _id_after(barrier, location):
    barrier.wait()
    return query_id_of(location)


@pytest.mark.parametrize("past", ["pgonce-real-time/1", "offsets"])
def test_a_past_that_the_ledger_does_not_know_is_refused(tmp_path, past):
    """Its rows may be in the table, and the words of a new query say where to begin without them."""
    refuse_unknown_past(str(tmp_path))
    (tmp_path / past).mkdir(parents=True)
    (tmp_path / past / "0").write_text("v1")
    with pytest.raises(RefusedBatch, match=r"\[UNKNOWN\]"):
        refuse_unknown_past(str(tmp_path))


def test_each_run_has_a_new_one_of_the_same_query(tmp_path):
    """It has the query's id and no batch, so that Spark begins where it is told."""
    first, second = (new_checkpoint(str(tmp_path), "an-id") for _ in range(2))
    assert first != second
    assert json.loads((tmp_path / first / "metadata").read_text()) == {"id": "an-id"}


@pytest.mark.spark
def test_older_ones_are_removed(spark, tmp_path):
    """The newest two stay; a location that is not there is nothing to worry about."""
    made = [new_checkpoint(str(tmp_path), "an-id") for _ in range(4)]
    remove_older(spark, str(tmp_path), made[-1])
    assert sorted(str(path) for path in (tmp_path / "pgonce-real-time").iterdir()) == sorted(made)[-2:]
    remove_older(spark, str(tmp_path), made[-2])
    assert len(list((tmp_path / "pgonce-real-time").iterdir())) == 2
    remove_older(spark, str(tmp_path / "elsewhere"), made[-1])
