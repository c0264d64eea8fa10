"""Rows below what is stored for their partition are dropped, and no others, however many partitions there are."""

from __future__ import annotations

import time

import pyarrow as pa

from pgonce.sink.positions.drop_stored_arrow import not_stored

STORED = {"0": {"orders": {"0": 5, "7": 100}, "refunds": {"0": 3}}, "1": {"others": {"0": 50}}}


def positions(*of):
    """Rows of these topics, partitions and offsets, as tasks note them."""
    topics, partitions, offsets = zip(*of, strict=True)
    arrays = [pa.array(topics).dictionary_encode(), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, names=["topic", "partition", "offset"])


def test_each_row_is_compared_with_the_end_of_its_own_partition():
    """A partition, or a topic, of which nothing is stored keeps all its rows."""
    kept = {
        ("orders", 0, 4): False,
        ("orders", 0, 5): True,
        ("orders", 7, 99): False,
        ("orders", 7, 100): True,
        ("orders", 1, 0): True,
        ("refunds", 0, 2): False,
        ("refunds", 0, 4): True,
        ("refunds", 7, 0): True,
        ("others", 0, 49): False,
        ("unheard of", 0, 0): True,
    }
    assert not_stored(positions(*kept), STORED).to_pylist() == list(kept.values())
    assert not_stored(positions(*kept), {}).to_pylist() == [True] * len(kept)


def test_a_thousand_partitions_cost_a_task_next_to_nothing():
    """A batch may have thousands of tasks of a few rows each: 1,000 comparisons for each took 25 ms a task."""
    stored = {"0": {"orders": {str(partition): 10 for partition in range(1000)}}}
    part = positions(*[("orders", 999, offset) for offset in range(20)])
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert not_stored(part, stored).to_pylist() == [False] * 10 + [True] * 10
        times.append(time.perf_counter() - began)
    assert min(times) < 0.005
