"""Is a sink that nobody can ask timed by its commits alone?"""

import pytest
from support.benchmark_modules import benchmark_module


@pytest.fixture(scope="module")
def stretches():
    """The benchmark's own module."""
    with benchmark_module("stretches") as module:
        yield module


def test_a_stretch_is_from_mark_to_mark(stretches):
    """What comes before the first mark and after the last one counts for nothing, however long it takes."""
    commits = [(0.0, 5), (100.0, 5), (101.0, 10), (103.5, 10), (999.0, 10)]
    assert [stretch.ms for stretch in stretches.cut(commits, [10, 20, 30])] == [1000, 2500]


def test_rows_within_a_transaction_count_by_time(stretches):
    """Where a mark lies within a transaction, its time lies as far between that commit and the one before."""
    assert stretches.cut([(10.0, 4), (14.0, 8)], [4, 6, 12]) == [(10.0, 11.0), (11.0, 14.0)]


def test_rows_that_never_came_have_no_time(stretches):
    """A table that ends below a mark is an error, and not a quick sink."""
    with pytest.raises(ValueError, match="30 rows should be there, but there are 20"):
        stretches.cut([(1.0, 10), (2.0, 10)], [10, 30])
