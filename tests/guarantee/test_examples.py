"""Every example, and the demo, does what it shows."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType

import psutil
import psycopg
import pytest
from change_feed import COLUMNS, ChangeFeed
from change_feed_topic import send
from confluent_kafka import Producer
from maven import ROOT
from support.batches import make_planned_batch
from support.benchmark_modules import benchmark_module
from support.committed_rows import appending
from support.fixtures.driver import Driver, wait_until
from support.fixtures.skips import unavailable
from support.fixtures.spark import spark_environment, spark_settings
from support.patience import PATIENCE_SECONDS
from support.query_runs import rewind

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.verdict.facts import Remedies

EXAMPLES = ROOT / "examples"
DEMO = EXAMPLES / "demo"

# What the demo calls exit status 2 is a fault of the machine only where it names a missing tool.
MISSING = "is missing"


@pytest.fixture
def start_example(start_driver: Callable[..., Driver], tmp_path: Path) -> Callable[..., Driver]:
    """Start an example as a process of its own: ``start_example(script, *arguments, kafka=False)``."""

    def start(script: Path, *arguments: object, kafka: bool = False) -> Driver:
        settings = {**spark_settings(tmp_path, kafka=kafka), "spark.ui.showConsoleProgress": "false"}
        properties = tmp_path / "spark.properties"
        properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        # Not a SPARK_CONF_DIR: it would stand on the JVM's class path, and its classes come from an archive of another.
        env = {"PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(properties))} pyspark-shell"}
        return start_driver(script, *arguments, env=env)

    return start


@pytest.fixture
def run_example(start_example: Callable[..., Driver]) -> Callable[..., Driver]:
    """The same, to its end."""

    def run(script: Path, *arguments: object, kafka: bool = False) -> Driver:
        driver = start_example(script, *arguments, kafka=kafka)
        driver.wait()
        return driver

    return run


def succeeded(driver: Driver) -> str:
    """The output of an example that ended well."""
    assert driver.wait() == 0, driver.output()[-4000:]
    return driver.output()


def order(order_id: int, day: int = 1) -> dict[str, object]:
    """One order event; its content follows from its id."""
    return {
        "order_id": order_id,
        "customer": f"customer-{order_id % 3}",
        "amount": order_id + 0.25,
        "placed_at": f"2026-03-{day:02d}T12:00:00Z",
    }


def one(observer: psycopg.Connection, query: str) -> tuple[object, ...]:
    """The only row of a query."""
    row = observer.execute(query).fetchone()
    assert row is not None
    return row


@pytest.fixture
def produce(kafka) -> Callable[..., None]:
    """Put orders into a topic: ``produce(topic, ids, day=1)``."""

    def put(topic: str, ids: range, day: int = 1) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for order_id in ids:
            event = order(order_id, day)
            producer.produce(topic, json.dumps(event), key=str(event["customer"]))
        assert producer.flush(30) == 0

    return put


def messages_there(observer: psycopg.Connection, wanted: int) -> bool:
    """Whether the table of messages is there, and has so many rows or more."""
    if one(observer, "SELECT to_regclass('messages')") == (None,):
        return False
    (count,) = one(observer, "SELECT count(*) FROM messages")
    return count >= wanted


class TestExamples:
    def test_follow_batches_tells_each_batch_once(self, url, observer, tmp_path):
        """Each batch is told once, in order, also those that were committed while the connection was lost."""
        settings = CommitSettings(url, Remedies(independent=True), notify_channel="batches")
        with psycopg.connect(url) as admin:
            admin.execute("CREATE TABLE events (id bigint, name text)")

        def commit(*numbers: int) -> None:
            for number in numbers:
                commit_batch(settings, make_planned_batch(number, query_name="orders"), appending(number))

        commit(0)
        output = tmp_path / "output"
        command = [sys.executable, EXAMPLES / "follow_batches.py", url]
        with output.open("w") as out, subprocess.Popen(command, stdout=out) as process:
            try:
                wait_until(lambda: "batch 0 " in output.read_text(), PATIENCE_SECONDS)
                commit(1, 2)
                wait_until(lambda: "batch 2 " in output.read_text(), PATIENCE_SECONDS)
                lost = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pgonce.batches AS b%'"
                ended = observer.execute(f"{lost} AND pid <> pg_backend_pid()").fetchall()
                commit(3)
                wait_until(lambda: "batch 3 " in output.read_text(), PATIENCE_SECONDS)
            finally:
                process.terminate()
        assert ended == [(True,)]
        lines = output.read_text().splitlines()
        assert lines == [f"batch {number} of orders into public.events: 1 rows" for number in range(4)]

    @pytest.mark.spark
    @pytest.mark.slow
    def test_files_to_postgres_reads_each_file_once(self, run_example, url, observer, tmp_path):
        """Files are read once, in a first run and in a second one that must first run a published batch again."""
        files, checkpoint = tmp_path / "orders", tmp_path / "checkpoint"
        files.mkdir()
        arguments = ("--files", files, "--checkpoint", checkpoint, "--url", url)
        for name, ids in {"a": range(1, 51), "b": range(51, 101)}.items():
            (files / f"{name}.json").write_text("\n".join(json.dumps(order(order_id)) for order_id in ids))
            succeeded(run_example(EXAMPLES / "files_to_postgres.py", *arguments))
            rewind(checkpoint)
        rows = observer.execute("SELECT order_id, customer, amount::float8 FROM orders ORDER BY order_id").fetchall()
        assert rows == [(n, f"customer-{n % 3}", n + 0.25) for n in range(1, 101)]
        assert one(observer, "SELECT array_agg(batch_id) FROM pgonce.replays") == ([0],)

    @pytest.mark.spark
    @pytest.mark.slow
    @pytest.mark.kafka
    def test_kafka_orders_agree_after_a_replay(self, run_example, kafka, topic, produce, url, observer, tmp_path):
        """Orders, newest orders and totals agree after a batch that was published was run again."""
        name, checkpoint = topic(partitions=2), tmp_path / "checkpoint"
        servers = ("--servers", kafka.bootstrap_servers, "--topic", name)
        arguments = (*servers, "--checkpoint", checkpoint, "--url", url, "--until-caught-up")
        for ids, day in ((range(1, 101), 1), (range(101, 201), 2)):
            produce(name, ids, day)
            succeeded(run_example(EXAMPLES / "kafka_orders.py", *arguments, kafka=True))
            rewind(checkpoint)
        assert one(observer, "SELECT count(*), count(DISTINCT order_id), min(order_id), max(order_id) FROM orders") == (
            200,
            200,
            1,
            200,
        )
        totals = observer.execute("SELECT day::text, orders, amount::float8 FROM daily_totals ORDER BY day").fetchall()
        assert totals == [("2026-03-01", 100, 5075.0), ("2026-03-02", 100, 15075.0)]
        newest = observer.execute("SELECT customer, order_id FROM newest_orders ORDER BY customer").fetchall()
        assert newest == [("customer-0", 198), ("customer-1", 199), ("customer-2", 200)]
        assert one(observer, "SELECT count(*) FROM pgonce.replays") == (1,)
        assert one(observer, "SELECT sum(end_offset::text::int) FROM pgonce.current_offsets") == (200,)

    @pytest.mark.spark
    @pytest.mark.slow
    @pytest.mark.kafka
    def test_real_time_survives_kills(self, start_example, kafka, topic, produce, tcp_url, observer, tmp_path):
        """Each message is there once, though each driver is killed, and the next one runs in another mode."""
        name = topic(partitions=2)
        servers = ("--servers", kafka.bootstrap_servers, "--topic", name)
        arguments = (*servers, "--checkpoint", tmp_path / "checkpoint", "--url", tcp_url)
        for number, mode in enumerate(("async", "continuous", "real-time", "async", "real-time")):
            produce(name, range(100 * number, 100 * number + 50))
            driver = start_example(EXAMPLES / "real_time.py", "--mode", mode, *arguments, kafka=True)
            wanted = 100 * number + 50
            driver.wait_for(partial(messages_there, observer, wanted), f"{wanted} messages came in mode {mode}")
            produce(name, range(wanted, wanted + 50))
            driver.wait_for(partial(messages_there, observer, wanted + 50), f"more messages came in mode {mode}")
            driver.sigkill()
        ids = observer.execute("SELECT (value::json ->> 'order_id')::int AS id FROM messages ORDER BY id").fetchall()
        assert [number for (number,) in ids] == list(range(500))

    @pytest.mark.spark
    @pytest.mark.slow
    def test_many_tables_has_each_event(self, run_example, url, observer, tmp_path):
        """Each event is in the table of its kind once, though the batch was run again; other kinds are counted."""
        files, checkpoint = tmp_path / "events", tmp_path / "checkpoint"
        files.mkdir()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10, 2))")
            amounts = "order_id bigint REFERENCES orders, amount numeric(10, 2)"
            connection.execute(f"CREATE TABLE payments (id bigint PRIMARY KEY, {amounts})")
        events = [{"kind": "payment", "id": 7, "order_id": 1, "amount": 5}, {"kind": "refund", "id": 8, "amount": 5}]
        events += [{"kind": "order", "id": number, "customer": f"c{number}", "amount": 5} for number in (1, 2)]
        (files / "1.json").write_text("\n".join(map(json.dumps, events)))
        for _ in range(2):
            succeeded(run_example(EXAMPLES / "many_tables.py", files, checkpoint, url))
            rewind(checkpoint)
        assert one(observer, "SELECT array_agg(id ORDER BY id) FROM orders") == ([1, 2],)
        assert one(observer, "SELECT id, order_id FROM payments") == (7, 1)
        assert one(observer, "SELECT counts FROM pgonce.batches") == ({"written": 3, "unrouted": 1},)
        assert one(observer, "SELECT array_agg(batch_id) FROM pgonce.replays") == ([0],)

    @pytest.mark.spark
    @pytest.mark.slow
    @pytest.mark.kafka
    def test_cdc_copies_the_table_of_its_source(self, run_example, kafka, topic, url, observer, tmp_path):
        """The copy is the source's table, though a batch was run again, and old events come again in both runs."""
        name, checkpoint = topic(partitions=2), tmp_path / "checkpoint"
        feed = ChangeFeed(2, keys=40, events=500, replays=4, large_notes=0.4, decimals="precise")
        records = list(feed.records())
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE TABLE orders ({COLUMNS}, lsn bigint)")
        for part in (records[: len(records) // 2], records[len(records) // 2 :]):
            send(part, kafka.bootstrap_servers, name)
            arguments = (kafka.bootstrap_servers, name, checkpoint, url)
            succeeded(run_example(EXAMPLES / "cdc.py", *arguments, kafka=True))
            rewind(checkpoint)
        rows = observer.execute("SELECT id, customer, amount, note, updated_at FROM orders").fetchall()
        assert sorted(rows) == sorted(feed.final_state().values())
        assert one(observer, "SELECT array_agg(batch_id) FROM pgonce.replays") == ([0],)

    @pytest.mark.spark
    @pytest.mark.slow
    @pytest.mark.kafka
    def test_resume_new_checkpoint_loses_nothing(self, run_example, kafka, topic, produce, url, observer, tmp_path):
        """A lost checkpoint alone is refused; with stored offsets the successor loses and doubles nothing."""
        name = topic(partitions=2)
        produce(name, range(1, 101))
        job = ("--kafka", kafka.bootstrap_servers, name, "--url", url, "--until-caught-up")
        succeeded(run_example(DEMO / "job.py", *job, "--checkpoint", tmp_path / "lost", kafka=True))
        produce(name, range(101, 151))

        afresh = run_example(DEMO / "job.py", *job, "--checkpoint", tmp_path / "afresh", kafka=True)
        assert afresh.wait() != 0
        assert "[FOREIGN]" in afresh.output()
        assert one(observer, "SELECT count(*) FROM orders") == (100,)

        servers = ("--servers", kafka.bootstrap_servers, "--topic", name)
        resume = (*servers, "--checkpoint", tmp_path / "new", "--url", url, "--until-caught-up")
        output = succeeded(run_example(EXAMPLES / "resume_new_checkpoint.py", *resume, kafka=True))
        assert "its successor starts at" in output
        produce(name, range(151, 201))
        succeeded(run_example(EXAMPLES / "resume_new_checkpoint.py", *resume, kafka=True))
        assert one(observer, "SELECT count(*), count(DISTINCT order_id), max(order_id) FROM orders") == (200, 200, 200)
        assert one(observer, "SELECT count(*), count(replaced_by) FROM pgonce.writers") == (2, 1)


class Demo:
    """`examples/demo/main.py` (or the sandbox) as `make` starts it, with a temporary directory of its own."""

    def __init__(self, script: Path, *arguments: str, **env: str) -> None:
        # Short, and open to the account that Postgres runs as: else the embedded server goes elsewhere.
        self.temporary = Path(tempfile.mkdtemp(prefix="demo-"))
        self.temporary.chmod(0o755)
        self._log = self.temporary.with_suffix(".log")
        path = os.pathsep.join([str(ROOT / "testbed"), str(DEMO), os.environ.get("PYTHONPATH", "")])
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={
                    **os.environ,
                    **spark_environment(),
                    "PYTHONPATH": path.rstrip(os.pathsep),
                    "PYTHONSAFEPATH": "1",
                    "TMPDIR": str(self.temporary),
                    # Children inherit it, so that what is left of them can be told from everything else.
                    "DEMO_TEST_MARK": self.temporary.name,
                    **env,
                },
            )

    def output(self) -> str:
        """What it said."""
        return self._log.read_text(errors="replace")

    def wait_for_output(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until it has said something."""
        wait_until(lambda: text in self.output() or self.process.poll() is not None, seconds)
        assert text in self.output(), self.output()[-4000:]

    def left_behind(self) -> list[object]:
        """Processes and files that it has not removed."""
        # A server's watcher is told to end, and needs a moment.
        wait_until(lambda: not [*self._processes(), *self.temporary.iterdir()], 30)
        return [*self._processes(), *self.temporary.iterdir()]

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("DEMO_TEST_MARK") == self.temporary.name and process.is_running():
                    yield process

    def close(self) -> None:
        """End it, if a failed test left it running, and remove its log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_SECONDS)
        self._log.unlink()
        shutil.rmtree(self.temporary)


@pytest.fixture
def demo() -> Iterator[Callable[..., Demo]]:
    """Start the demo: ``demo(*arguments, NAME=value)``; ``script`` names another program beside it."""
    started: list[Demo] = []

    def start(*arguments: str, script: Path = DEMO / "main.py", **env: str) -> Demo:
        started.append(Demo(script, *arguments, **env))
        return started[-1]

    yield start
    for one_demo in started:
        one_demo.close()


def table(output: str) -> dict[str, str]:
    """The demo's table: name to value, the first line of each."""
    lines = output[output.index("compares every order") :].splitlines()[1:]
    cells = [line.strip().rsplit("  ", 1) for line in lines if "  " in line.strip()]
    return {cell[0].strip(): cell[1].strip() for cell in cells}


def assert_exactly_once(output: str) -> None:
    """The table holds what the issue asks for, and its figures agree with each other."""
    figures = table(output)
    assert {"rows expected", "rows there", "findings", "end offsets", "kills"} <= {*figures}
    assert (figures["rows expected"], figures["findings"]) == (figures["rows there"], "none")
    assert int(figures["rows there"].replace(",", "")) > 1000
    assert int(figures["kills"]) == output.count("SIGKILL to driver") == 3
    assert "EXACTLY ONCE" in output.splitlines()[-1]


def assert_replays_skipped(output: str) -> None:
    """Each batch that was to be handed over again was skipped."""
    figures = table(output)
    assert int(figures["batches"].replace(",", "")) > 0
    assert int(figures["replays skipped"]) >= output.count("will hand it over again")


def assert_timed(output: str) -> None:
    """Orders were visible long before Spark's batch of a minute ended, with each driver that was killed."""
    figures = table(output)
    p50, p99, greatest = (
        float(figures[name].removesuffix(" ms")) for name in ("visible after, p50", "p99", "greatest")
    )
    assert 0 < p50 <= p99 <= greatest
    assert p50 < 1000
    assert output.count("orders were visible after") == output.count("at the positions in Postgres") == 3
    timed = sum(int(found.replace(",", "")) for found in re.findall(r"([\d,]+) orders were visible after", output))
    assert int(figures["orders timed"].replace(",", "")) == timed > 300


class TestDemo:
    @pytest.mark.spark
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("argument", "partitions"),
        [
            pytest.param(None, 0, id="files"),
            pytest.param("--kafka", 4, id="kafka", marks=[pytest.mark.kafka, pytest.mark.long]),
            pytest.param("--real-time", 2, id="real-time", marks=[pytest.mark.kafka, pytest.mark.long]),
        ],
    )
    def test_the_demo_has_every_order_once_after_three_kills(self, demo, argument, partitions):
        """Every order is there once, from files or from a real broker, and nothing of the demo is left."""
        running = demo(*([argument] if argument else []))
        status = running.process.wait(PATIENCE_SECONDS)
        if status == 2 and MISSING in running.output():
            unavailable(running.output().splitlines()[-1])
        assert status == 0, running.output()
        assert_exactly_once(running.output())
        (assert_timed if argument == "--real-time" else assert_replays_skipped)(running.output())
        assert [f"orders/{partition}: " in running.output() for partition in range(partitions)] == [True] * partitions
        assert running.left_behind() == []

    @pytest.mark.spark
    @pytest.mark.slow
    def test_the_demo_leaves_nothing_if_interrupted(self, demo):
        """Ctrl-C while the job runs ends it with status 130, and nothing is left, Postgres included."""
        running = demo()
        running.wait_for_output("published batch")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_SECONDS) == 130, running.output()
        assert running.left_behind() == []

    def test_the_demo_says_that_java_is_missing(self, demo):
        """Without Java it says so in one sentence, and what to install."""
        running = demo("--kafka", JAVA_HOME="/nowhere")
        assert running.process.wait(PATIENCE_SECONDS) == 2
        (line,) = running.output().splitlines()
        assert line.startswith("Java 17 or newer is missing: install")

    @pytest.mark.spark
    @pytest.mark.slow
    def test_an_example_runs_in_the_sandbox(self, demo):
        """An example runs with no server at hand, and as many rows come out as orders went in."""
        running = demo(str(EXAMPLES / "files_to_postgres.py"), script=EXAMPLES / "sandbox.py")
        assert running.process.wait(PATIENCE_SECONDS) == 0, running.output()
        lines = running.output().splitlines()
        went_in = lines[0].split(" orders are there")[0]
        assert lines[-1] == f"orders: {went_in} rows"
        assert running.left_behind() == []

    def test_a_postgres_for_a_while(self, demo):
        """Without an example it prints what a shell takes to reach its Postgres, which Ctrl-C removes."""
        running = demo(script=EXAMPLES / "sandbox.py")
        running.wait_for_output("export PGONCE_URL=")
        url = shlex.split(running.output().splitlines()[-1])[1].removeprefix("PGONCE_URL=")
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE_SECONDS) == 130, running.output()
        assert running.left_behind() == []


@pytest.fixture
def outcome() -> Iterator[ModuleType]:
    """The demo's module that judges."""
    with benchmark_module("outcome", "examples/demo") as module:
        yield module


class TestVerdict:
    """Ten orders were sent; each case is what could be in the table."""

    ORDERS = tuple((order_id, 100 * order_id + 5) for order_id in range(1, 11))

    def judged(self, outcome, url, store, admin, rows):
        admin.execute("CREATE TABLE orders (order_id bigint, amount numeric(10, 2), customer text)")
        for order_id, cents in rows:
            admin.execute("INSERT INTO orders VALUES (%s, %s::numeric / 100, 'c')", [order_id, cents])
        return outcome.judge(len(self.ORDERS), outcome.audited(url, self.ORDERS), kills=3)

    @pytest.mark.parametrize(
        ("rows", "fault"),
        [
            (ORDERS[:-1], "1 lost"),
            (ORDERS + ORDERS[3:5], "2 doubled"),
            (ORDERS[2:] + ORDERS[2:4], "2 lost and 2 doubled"),
            ([*ORDERS[:-1], (10, 1)], "1 altered"),
            ([*ORDERS[:-1], (11, 1005)], "1 not of the source and 1 lost"),
            ([], "10 lost"),
        ],
        ids=["lost", "doubled", "both, and the count is right", "another amount", "an id nobody sent", "empty"],
    )
    def test_a_lost_doubled_or_changed_row_fails_the_demo(self, outcome, url, store, admin, rows, fault):
        """A row that is lost, doubled or changed fails the demo, and the sentence says which."""
        verdict = self.judged(outcome, url, store, admin, rows)
        assert not verdict.exactly_once
        assert verdict.sentence.startswith("FAILED")
        assert fault in verdict.sentence
