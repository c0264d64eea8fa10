"""Executors in networks of their own: Postgres has another address there than for the driver, or none at all."""

from __future__ import annotations

import psutil
import psycopg
import pytest
from embedded_postgres import EmbeddedPostgres
from network_namespaces import namespaces, refuse_without_tools
from postgres_binaries import bin_dir
from support.clustered import check, clustered
from support.fixtures.postgres import made_database, postgres_major
from support.inbox import Inbox

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def bridge():
    """Two hosts, each with a network of its own."""
    refuse_without_tools()
    with namespaces(2) as made:
        yield made


@pytest.fixture(scope="module")
def server(bridge):
    """A Postgres at 127.0.0.1 for the driver, which is another place for executors, and at the bridge's address."""
    with EmbeddedPostgres(bin_dir=bin_dir(postgres_major()), also_at=bridge.address) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(bridge, tmp_path_factory):
    """A worker on each host; the master and the driver are on this machine."""
    workers = {host.address: host.within for host in bridge.namespaces}
    with clustered(tmp_path_factory.mktemp("networks"), host=bridge.address, workers=workers) as running:
        yield running


@pytest.fixture
def database(server):
    """Name of a fresh database."""
    with made_database(server.uri()) as name:
        yield name


@pytest.fixture
def observer(server, database):
    """A connection that looks."""
    with psycopg.connect(server.uri(database), autocommit=True) as connection:
        yield connection


@pytest.fixture
def inside(server, bridge, database):
    """How executors reach the database."""
    return f"postgresql://postgres@{bridge.address}:{server.port}/{database}"


def transports(observer):
    """How each of the batches came, says the ledger."""
    return [way for (way,) in observer.execute("SELECT transport FROM pgonce.batches ORDER BY batch_id")]


def add_batch(query):
    """One more batch, and wait until it is there."""
    query.inbox.add(40)
    query.wait_for_all_rows()


def started(cluster, server, database, way, name, **settings):
    """A query whose driver reaches Postgres at 127.0.0.1; its first batch is on its way."""
    inbox = Inbox(cluster.folder / name)
    query = cluster.remote.query(server.tcp_uri(database), way, name, inbox, shape="shuffled", **settings)
    inbox.add(40)
    query.start()
    return query


def run_on_both_hosts(scenario):
    """Run a batch whose tasks go to both hosts, because one of them is held until another host has done one, too."""
    scenario.gates.close(1, "done", 0)
    hosts = {worker.host for worker in scenario.at.cluster.workers}

    def wait_for_both(_):
        passed = lambda: {one.host for one in scenario.gates.passed(1, "done")}  # noqa: E731
        scenario.wait_for(lambda: passed() == hosts, "both hosts had done a task")

    scenario.run_struck_batch(wait_for_both)
    scenario.finish()


class TestAnotherAddress:
    def test_rows_staged_through_executor_url_are_found_through_url(self, cluster, server, database, inside, observer):
        """Tasks stage through executorUrl, and the commit finds their rows through url."""
        scenario = cluster.scenario(server.tcp_uri(database), "staged", "shuffled", "elsewhere", executor_url=inside)
        run_on_both_hosts(scenario)
        check(scenario.query, observer)
        assert set(transports(observer)) == {"staged"}

    def test_a_receiver_at_a_named_address_takes_the_first_batch(self, bridge, cluster, server, database, observer):
        """A receiver at an address that the user names takes the rows of the first batch already."""
        query = started(cluster, server, database, "received", "taken", receiver=bridge.address)
        query.wait_for_all_rows()
        query.stop()
        check(query, observer)
        assert set(transports(observer)) == {"received"}

    def test_a_receiver_is_found_where_sparks_driver_is(self, cluster, server, database, inside, observer):
        """The first large batch is staged; the next ones go to the driver, though Postgres is at 127.0.0.1 for it."""
        query = started(cluster, server, database, "received", "found", executor_url=inside)
        query.wait_for_all_rows()
        add_batch(query)
        assert transports(observer) == ["staged", "received"]
        query.stop()
        # It is known on this host that the query's batches are large.
        query.inbox.add(40)
        query.start()
        query.wait_for_all_rows()
        query.stop()
        check(query, observer)
        assert transports(observer) == ["staged", "received", "received"]

    def test_a_receiver_that_no_executor_reaches(self, bridge, cluster, server, database, inside, observer):
        """It costs two seconds of one batch; no other one is offered, and the log says so once."""
        # Executors have reached one that other queries of this driver have started.
        for process in psutil.process_iter(["cmdline"]):
            if "pgonce.sink.data_source.receiver.process" in " ".join(process.info["cmdline"] or ()):
                process.kill()
        query = started(cluster, server, database, "received", "missed", executor_url=inside)
        query.wait_for_all_rows()
        listening = {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        for host in bridge.namespaces:
            host.connect_only_to(bridge.address, listening)
        try:
            for _ in range(3):
                add_batch(query)
        finally:
            for host in bridge.namespaces:
                host.connect_anywhere()
        query.stop()
        check(query, observer)
        assert transports(observer) == ["staged"] * 4
        assert cluster.remote.output().count("no executor reaches the receiver on this driver") == 1

    def test_an_executor_url_of_another_database_is_found_out(self, cluster, server, database, inside, observer):
        """An executorUrl that leads elsewhere is found out before a row is written."""
        elsewhere = inside.replace(database, "postgres")
        query = started(cluster, server, database, "staged", "wrong", executor_url=elsewhere)
        error = query.error()
        assert "[STAGED_ROWS_LOST]" in error
        assert "executorUrl leads to another database" in error
        assert observer.execute("SELECT count(*) FROM wrong_staged").fetchone() == (0,)


def test_small_batches_need_no_way_at_all(bridge, cluster, server, database, inside, observer):
    """Rows in commit messages come from both hosts; the last test, because nothing opens their firewalls again."""
    for host in bridge.namespaces:
        host.refuse(server.port)
    scenario = cluster.scenario(server.tcp_uri(database), "inline", "shuffled", "small", executor_url=inside)
    run_on_both_hosts(scenario)
    check(scenario.query, observer)
    assert set(transports(observer)) == {"inline"}
