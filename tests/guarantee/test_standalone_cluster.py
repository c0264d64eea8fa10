"""A real cluster, whose executors and workers are killed: nothing is lost, doubled or left behind."""

from __future__ import annotations

import os
import re
import signal

import pytest
from support.clustered import PARTITIONS, check, clustered
from support.gates import COLLECTED

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Ways in, and how their rows leave a task.
TRANSPORTS = {"inline": "inline", "staged": "staged", "received": "received", "writer_append": COLLECTED}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A master, two workers, and a driver of its own."""
    with clustered(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def lose_an_executor(scenario):
    """An executor dies with a task that has encoded, staged or sent all of its rows."""
    host = scenario.wait_at("done", 0).host
    assert scenario.at.worker_at(host).kill_executors() == 1


def lose_a_worker(scenario):
    """A host goes away, with its worker, its executor and the task's Python."""
    host = scenario.wait_at("done", 0).host
    worker = scenario.at.worker_at(host)
    scenario.at.cluster.lose(worker)
    scenario.gates.open()
    scenario.query.wait_for_all_rows()
    scenario.at.cluster.add_workers(host)


def lose_a_python_worker(scenario):
    """The Python process of a task dies; the executor lives, and the task is tried again."""
    os.kill(scenario.wait_at("done", 0).pid, signal.SIGKILL)


def run_a_task_twice(scenario):
    """Speculation starts a second attempt on the other host, and both do all of their work."""
    scenario.wait_for(lambda: len({one.host for one in scenario.gates.passed(1, "done", 0)}) == 2, "both had done it")


def decommission_a_worker(scenario):
    """A worker is told that it will go; its task ends, and later ones go to the other."""
    host = scenario.wait_at("done", 0).host
    worker = scenario.at.worker_at(host)
    worker.decommission()
    scenario.wait_for(lambda: "Decommission executor" in worker.executor_logs(), "the executor knew that it was to go")
    begun = tasks_at(scenario, host)
    scenario.gates.open()
    scenario.query.wait_for_all_rows()
    begun_since = tasks_at(scenario, host) - begun
    scenario.at.replace(worker)
    assert begun_since == 0


def tasks_at(scenario, host):
    """How many attempts of the second batch's tasks have begun there."""
    return sum(passed.host == host for passed in scenario.gates.passed(1, "begun"))


def lose_shuffle_files(scenario):
    """What the tasks before the shuffle have written is gone when half of those after it have begun."""
    scenario.gates.close(1, "begun", 1)
    for partition_id in (0, 1):
        scenario.wait_at("begun", partition_id)
    files = [path for worker in scenario.at.cluster.workers for path in worker.shuffle_files()]
    assert files
    for path in files:
        path.unlink()
    before = tasks_of_stages_run_again(scenario)
    scenario.gates.open()
    scenario.query.wait_for_all_rows()
    assert tasks_of_stages_run_again(scenario) > before


def tasks_of_stages_run_again(scenario):
    """How many tasks executors have run of second or later attempts of a stage."""
    again = re.compile(r"Running task \S+ in stage \d+\.[1-9]")
    return sum(len(again.findall(worker.executor_logs())) for worker in scenario.at.cluster.workers)


# Where the first task of the batch stands, what is done to it, and whether a task is then run again for certain.
FAULTS = {
    "an executor": ("done", lose_an_executor, True),
    "a worker": ("done", lose_a_worker, True),
    "a Python worker": ("done", lose_a_python_worker, True),
    "a task runs twice": ("done", run_a_task_twice, True),
    "a worker is decommissioned": ("done", decommission_a_worker, False),
    "shuffle files": ("begun", lose_shuffle_files, False),
}


def strike(cluster, tcp_url, observer, fault, way, shape, topic=None):
    """One query of three batches, the second of which is struck."""
    name = f"{fault}_{way}_{shape}{'_kafka' if topic else ''}".replace(" ", "_").lower()
    scenario = cluster.scenario(tcp_url, way, shape, name, topic)
    moment, by, runs_again = FAULTS[fault]
    scenario.gates.close(1, moment, 0)
    scenario.run_struck_batch(by)
    scenario.finish()
    check(scenario.query, observer)
    done = scenario.gates.passed(1, "done")
    # A receiver that has all rows of one attempt of a task takes none of another, which stages them in vain.
    assert TRANSPORTS[way] in {passed.way for passed in done} <= {TRANSPORTS[way], "staged"}
    assert len(done) >= PARTITIONS + runs_again


@pytest.mark.parametrize("shape", ["shuffled", "stateful"])
@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_row_comes_once(fault, way, shape, cluster, tcp_url, observer):
    """Whatever is lost in the middle of a batch, its rows are in the table once, and no staging table stays."""
    strike(cluster, tcp_url, observer, fault, way, shape)


@pytest.mark.kafka
@pytest.mark.parametrize("way", TRANSPORTS)
def test_an_executor_is_lost_whose_tasks_read_kafka_themselves(way, cluster, tcp_url, observer, kafka, topic):
    """An executor is lost whose tasks have read Kafka themselves."""
    source = kafka.bootstrap_servers, topic(partitions=2)
    strike(cluster, tcp_url, observer, "an executor", way, "shuffled", source)
