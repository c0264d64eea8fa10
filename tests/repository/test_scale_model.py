"""Do the ceilings that docs/scaling.md computes follow from the rates that were measured?"""

from dataclasses import replace

import pytest
from support.benchmark_modules import benchmark_module


@pytest.fixture(scope="module")
def model():
    """The benchmark's own module."""
    with benchmark_module("scale_model") as module:
        yield module


@pytest.fixture
def rates(model):
    """Round figures."""
    return model.Rates(
        task=4, encode=0.5, copy=1, stage=0.5, insert=2, wal_copy=100, wal_insert=200, receive=0.25, collect=0.5,
        trigger_seconds=0.5, task_seconds=0.01, message_seconds=0.01,
    )  # fmt: skip


def test_staged_rows_are_made_staged_and_inserted_one_after_the_other(model, rates):
    """Tasks share the first two among the cores; the last is one statement."""
    cluster = model.Cluster(executors=5, cores=2)
    seconds = model.batch_seconds("staged", 2, cluster, rates)
    assert seconds == pytest.approx(0.5 + 10 * 0.02 + 2 * (4 + 0.5 + 0.5) / 10 + 2 * 2)


def test_received_rows_are_copied_while_others_are_made(model, rates):
    """The slowest of the two decides: the COPY with many cores, Spark with few."""
    many, few = model.Cluster(executors=50, cores=2), model.Cluster(executors=1, cores=1)
    assert model.batch_seconds("receiver", 2, many, rates) == pytest.approx(0.5 + 100 * 0.02 + 2 * 1)
    assert model.batch_seconds("receiver", 2, few, rates) == pytest.approx(0.5 + 0.02 + 2 * 4.5)


def test_the_drivers_python_encodes_and_copies_in_one_thread(model, rates):
    """That is what bounds foreachBatch on a large cluster."""
    cluster = model.Cluster(executors=50, cores=2)
    assert model.batch_seconds("foreachBatch", 2, cluster, rates) == pytest.approx(0.5 + 100 * 0.02 + 2 * 1.5)


def test_what_would_save_most_is_named(model, rates):
    """One executor, one connection, or the batch's fixed cost, as a batch grows and shrinks."""
    one, many = model.Cluster(1, 1), model.Cluster(100, 1)
    assert model.what_holds_back("receiver", 10, one, rates) == "executors"
    assert model.what_holds_back("receiver", 10, many, rates) == "one connection's COPY or INSERT"
    assert model.what_holds_back("receiver", 0.001, one, rates) == "the fixed cost of a batch"
    slow_driver = replace(rates, collect=9)
    assert model.what_holds_back("foreachBatch", 10, many, slow_driver) == "the driver"


def test_more_sinks_help_until_the_servers_are_full(model, rates):
    """Then only more servers do."""
    cluster = model.Cluster(1000, 4, server_cores=8, wal_bytes_a_second=300e6)
    assert model.rows_a_second("receiver", 10, replace(cluster, sinks=100), rates) == (3e6, "the servers' WAL")
    two = replace(cluster, sinks=100, databases=2)
    assert model.rows_a_second("receiver", 10, two, rates) == (6e6, "the servers' WAL")
    few_cores = replace(cluster, sinks=100, server_cores=2)
    assert model.rows_a_second("receiver", 10, few_cores, rates) == (2e6, "the servers' cores")


def test_how_many_sinks_a_goal_takes(model, rates):
    """The first number that reaches it; none if the server cannot take so much."""
    cluster = model.Cluster(100, 4)
    needed = model.sinks_for(1_500_000, "receiver", 10, cluster, rates)
    assert model.rows_a_second("receiver", 10, replace(cluster, sinks=needed), rates)[0] >= 1_500_000
    assert model.rows_a_second("receiver", 10, replace(cluster, sinks=needed - 1), rates)[0] < 1_500_000
    assert model.sinks_for(50_000_000, "receiver", 10, cluster, rates) is None


def test_the_measured_rates_lead_to_what_make_bench_has_measured(model):
    """On two cores with Postgres on the same two, a million rows take 1.6 to 3.9 s: no model may promise less."""
    cluster = model.Cluster(executors=1, cores=2, server_cores=2)
    assert model.batch_seconds("staged", 1, cluster, model.MEASURED) < 3.9
    assert 0.8 < model.batch_seconds("foreachBatch", 1, cluster, model.MEASURED) < 3.9
    assert 1.0 < model.batch_seconds("receiver", 1, cluster, model.MEASURED) < 2.3
