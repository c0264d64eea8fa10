"""
Bad input and trouble: each is refused with its code, and once repaired the same query finishes exactly-once.

Each case runs twice on one checkpoint: first into the trouble, then after it was repaired.

Covers: sink.identity.from_checkpoint, sink.identity.planned_batch.
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.patience import PATIENCE_SECONDS

from pgonce import PostgresBatchWriter, transactional_batch
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import ConfigurationError, PgonceError
from pgonce.sink.identity.from_checkpoint import Origin, batch_from_checkpoint
from pgonce.sink.identity.planned_batch import newest_uncommitted_entry
from pgonce.sink.options.sink_options import parse_options

pytestmark = pytest.mark.spark

COLUMNS = "id long, name string, amount decimal(10,2)"
ROWS = [{"id": n, "name": f"name {n}", "amount": f"{n}.50"} for n in range(1, 6)]
TABLE = "CREATE TABLE events (id bigint, name text, amount numeric(10,2))"


@dataclass(frozen=True)
class Trouble:
    """What stands in the way (``setup``), what it is called, and what repairs it."""

    code: str
    setup: tuple[str, ...] = (TABLE,)
    repair: tuple[str, ...] = ()
    says: str = ""


TROUBLES = {
    "the table is missing": Trouble("TARGET_MISSING", (), (TABLE,), says="public.events"),
    "a column has another type": Trouble(
        "TYPE_MISMATCH",
        ("CREATE TABLE events (id boolean, name text, amount numeric(10,2))",),
        ("ALTER TABLE events ALTER id TYPE bigint USING 0",),
        says="'id'",
    ),
    "a text too long": Trouble(
        "VALUE_NOT_STORABLE",
        ("CREATE TABLE events (id bigint, name varchar(4), amount numeric(10,2))",),
        ("ALTER TABLE events ALTER name TYPE text",),
        says="column name",
    ),
    "a deferred foreign key violation": Trouble(
        "FOREIGN_KEY_VIOLATION",
        (
            "CREATE TABLE people (id bigint PRIMARY KEY)",
            TABLE,
            "ALTER TABLE events ADD CONSTRAINT who FOREIGN KEY (id) REFERENCES people DEFERRABLE INITIALLY DEFERRED",
        ),
        ("INSERT INTO people SELECT generate_series(1, 5)",),
        says="who",
    ),
    "synchronous_commit is off": Trouble(
        "SYNCHRONOUS_COMMIT_OFF",
        (TABLE, "ALTER DATABASE {database} SET synchronous_commit = off"),
        ("ALTER DATABASE {database} SET synchronous_commit = on",),
    ),
    "a ledger newer than the code": Trouble(
        "PGONCE_TOO_OLD",
        (
            TABLE,
            "CREATE SCHEMA pgonce",
            "CREATE TABLE pgonce.schema_version (version int, least_reader_version int)",
            "INSERT INTO pgonce.schema_version VALUES (999, 999)",
        ),
        ("DROP SCHEMA pgonce CASCADE",),
        says="999",
    ),
}

WAYS = ("data source", "batch writer")
# Each trouble comes by one of the two ways, because both look at the table with the same code; tests/sink/writing has
# more of them, without Spark.
FOUND_FIRST = ("the table is missing", "a column has another type")
FOUND_LATER = [name for name in TROUBLES if name not in FOUND_FIRST]
IN_SHORT = ("a text too long", "a deferred foreign key violation", "a ledger newer than the code")


@pytest.fixture
def events(tmp_path):
    """A folder of JSON events, as a streaming frame reads them."""
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "1.json").write_text("\n".join(map(json.dumps, ROWS)))
    return folder


def run(way, frame, url, checkpoint, retry_timeout=0):
    """Run the query over what there is; the text of its failure, or an empty one."""
    writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    try:
        if way == "function":
            write = transactional_batch(url, name="events", retry_timeout=retry_timeout)
            query = writer.foreachBatch(write(lambda batch, tx: tx.append(batch, "events"))).start()
        elif way == "data source":
            query = writer.format("pgonce").options(url=url, table="events", retryTimeout=str(retry_timeout)).start()
        else:
            query = writer.foreachBatch(PostgresBatchWriter(url, table="events", retry_timeout=retry_timeout)).start()
        query.awaitTermination(PATIENCE_SECONDS)
    except (PySparkException, PgonceError) as error:
        return str(error)
    return ""


def stream(spark, folder):
    """The events of a folder, one file a batch."""
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(folder))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, WAYS[number % 2], marks=() if name in IN_SHORT else pytest.mark.thorough)
        for number, name in enumerate(FOUND_LATER)
    ],
)
def test_trouble_is_named_and_once_repaired_the_query_finishes(
    name, way, spark, admin, url, database, events, checkpoint
):
    """The batch is refused with its code, nothing is written; once the cause is repaired, all rows are there once."""
    trouble = TROUBLES[name]
    for statement in trouble.setup:
        admin.execute(statement.format(database=database).encode())
    failure = run(way, stream(spark, events), url, checkpoint)
    assert f"[{trouble.code}]" in failure
    assert trouble.says in failure
    assert "Help: " in failure
    for statement in trouble.repair:
        admin.execute(statement.format(database=database).encode())
    assert run(way, stream(spark, events), url, checkpoint) == ""
    # Every row once: also nothing of the refused try is there.
    found = admin.execute("SELECT id, name, amount::text FROM events ORDER BY id").fetchall()
    assert found == [(row["id"], row["name"], row["amount"]) for row in ROWS]
    assert admin.execute("SELECT batch_id, rows FROM pgonce.batches").fetchall() == [(0, len(ROWS))]


@pytest.fixture
def computed(tmp_path):
    """A sign that is there once a row was computed."""
    return tmp_path / "computed"


@pytest.fixture
def computing(spark, events, computed):
    """The events, which give that sign when they are computed."""

    def compute(batches):
        computed.touch()
        yield from batches

    return stream(spark, events).mapInArrow(compute, COLUMNS)


@pytest.mark.parametrize(
    ("name", "way"), [(FOUND_FIRST[0], WAYS[0]), pytest.param(FOUND_FIRST[1], WAYS[1], marks=pytest.mark.thorough)]
)
def test_what_needs_no_row_is_found_before_one_is_computed(name, way, admin, url, checkpoint, computing, computed):
    """However long the first batch would take, a table that is missing or does not fit is said at once."""
    trouble = TROUBLES[name]
    for statement in trouble.setup:
        admin.execute(statement)
    failure = run(way, computing, url, checkpoint)
    assert f"[{trouble.code}]" in failure
    assert trouble.says in failure
    assert not computed.exists()
    for statement in trouble.repair:
        admin.execute(statement)
    # The rows do come by there, when they are computed.
    assert run(way, computing, url, checkpoint) == ""
    assert computed.exists()
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (len(ROWS),)


@pytest.mark.parametrize("way", [WAYS[0], pytest.param("function", marks=pytest.mark.thorough)])
def test_a_rival_is_found_before_a_row_is_computed(
    way, spark, admin, url, events, checkpoint, tmp_path, computing, computed
):
    """A second query of the table, on a new checkpoint, is FOREIGN at once; a backfill does not pay hours for that."""
    admin.execute(TABLE)
    assert run(way, stream(spark, events), url, checkpoint) == ""
    assert "[FOREIGN]" in run(way, computing, url, str(tmp_path / "another"))
    assert not computed.exists()


@pytest.mark.parametrize("way", [WAYS[0], pytest.param(WAYS[1], marks=pytest.mark.thorough)])
def test_a_wrong_password_is_refused_and_never_shown(way, spark, login, events, checkpoint, caplog):
    """Wrong credentials fail at once, and neither the error nor the driver's log shows them."""
    # Not Py4J's own wire log, which repeats whatever a program sends to the JVM.
    caplog.set_level(logging.DEBUG, logger="pgonce")
    wrong = login.url.replace(login.url.split(":")[2].split("@")[0], "wr0ngp4ss")
    failure = run(way, stream(spark, events), wrong, checkpoint, retry_timeout=30)
    assert "[CONNECT_REFUSED]" in failure
    # What the JVM and its Python workers print is read by tests/security/test_secrets.py.
    assert "wr0ngp4ss" not in failure + caplog.text


def test_a_checkpoint_that_only_the_session_names_is_refused(spark, conf, url, events, checkpoint):
    """A checkpoint location of the session's configuration is not shown to a Python sink."""
    conf("spark.sql.streaming.checkpointLocation", checkpoint)
    writer = stream(spark, events).writeStream.format("pgonce").options(url=url, table="events")
    query = writer.queryName("only_conf").start()
    with pytest.raises(PySparkException, match="OPTION_MISSING"):
        query.awaitTermination(PATIENCE_SECONDS)


def test_foreach_batch_without_a_checkpoint_location_is_refused(spark, admin, url, events):
    """A temporary checkpoint means a new query id at every start, so nothing could tell a replay."""
    admin.execute(TABLE)
    query = stream(spark, events).writeStream.foreachBatch(PostgresBatchWriter(url, table="events")).start()
    with pytest.raises(PySparkException, match="OPTION_MISSING"):
        query.awaitTermination(PATIENCE_SECONDS)


def test_a_writer_called_outside_foreach_batch_is_refused(spark, admin, url):
    """A plain DataFrame has no batch id and no offsets."""
    admin.execute(TABLE)
    with pytest.raises(Exception, match="NOT_CALLED_BY_SPARK"):
        PostgresBatchWriter(url, table="events")(spark.range(3), 0)


def start_function(frame, function, checkpoint):
    """Start a query that hands its batches to ``function``."""
    writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


OF_ANOTHER_QUERY = '{"id":"11111111-1111-1111-1111-111111111111"}'


def of_another_planning(text):
    """The entry, as if it had been planned later."""
    return text.replace('"batchTimestampMs":', '"batchTimestampMs":9')


def of_another_range(text):
    """The entry, dated as it was: renames need not be atomic."""
    return "\n".join([*text.split("\n")[:2], '{"logOffset":7}'])


@pytest.mark.parametrize(
    ("name", "rewritten", "before", "code"),
    [
        ("offsets/0", of_another_planning, 0, "CHECKPOINT_IN_USE"),
        ("offsets/0", of_another_range, 0, "CHECKPOINT_IN_USE"),
        # A frozen driver may rename its file over that of a batch from whose end this driver has gone on.
        ("offsets/0", of_another_range, 1, "CHECKPOINT_IN_USE"),
        ("metadata", lambda _: OF_ANOTHER_QUERY, 0, "OTHER_CHECKPOINT"),
    ],
    ids=["planned again", "another range", "the entry before", "another query"],
)
def test_a_checkpoint_that_another_driver_took_over_stops_the_function(
    name, rewritten, before, code, spark, admin, url, events, checkpoint
):
    """Where two drivers both believe that an entry is theirs, the one whose entry was overwritten publishes nothing."""
    admin.execute(TABLE)
    if before:
        assert run("foreachBatch", stream(spark, events), url, checkpoint) == ""
        (events / "2.json").write_text(json.dumps(ROWS[0]))
    write = PostgresBatchWriter(url, table="events", retry_timeout=0)

    def late(frame, batch_id):
        # As the other driver would, between Spark's own write and ours.
        file = Path(checkpoint) / name
        file.write_text(rewritten(file.read_text()))
        write(frame, batch_id)

    with pytest.raises(PySparkException, match=rf"\[{code}\]"):
        start_function(stream(spark, events), late, checkpoint).awaitTermination(PATIENCE_SECONDS)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (before * len(ROWS),)


def controlling(*statements):
    """A function's own SQL that does something to its transaction, and then writes on."""

    def deed(tx):
        for statement in statements:
            tx.execute(statement)
        tx.execute("INSERT INTO events VALUES (-1, 'after', 0)")

    return deed


def swallowing(tx):
    """A statement fails, which ends the transaction for Postgres, and the function looks away."""
    with suppress(Exception):
        tx.execute("SELECT 1/0")


def raising(_):
    """An error of the function's own, which reaches the user as it is."""
    raise ValueError("the shop is closed")


CONTROL = [
    ("COMMIT",),
    ("ROLLBACK AND CHAIN",),
    ("COMMIT", "BEGIN"),
    ("ROLLBACK",),
    ("ROLLBACK", "BEGIN"),
    ("COMMIT AND CHAIN",),
]
DEEDS = {
    **{
        ", ".join(statements): pytest.param(
            controlling(*statements), "TRANSACTION_ENDED", marks=pytest.mark.thorough if number > 1 else ()
        )
        for number, statements in enumerate(CONTROL)
    },
    "an error is swallowed": (swallowing, "STATEMENT_FAILED"),
    "an error of its own": (raising, "the shop is closed"),
}


@pytest.mark.parametrize(("deed", "says"), DEEDS.values(), ids=DEEDS)
def test_whatever_a_function_does_rows_come_only_with_their_offsets(deed, says, spark, admin, url, events, checkpoint):
    """Transaction control, failures that nobody looks at and errors of its own leave neither a row nor a record."""
    admin.execute(TABLE)

    @transactional_batch(url, name="events", retry_timeout=0)
    def write(batch, tx):
        tx.append(batch, "events")
        deed(tx)

    query = start_function(stream(spark, events), write, checkpoint)
    with pytest.raises(PySparkException, match=says):
        query.awaitTermination(PATIENCE_SECONDS)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert admin.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (0,)


def options_for(checkpoint):
    """The options of a sink that reads this checkpoint."""
    return parse_options({"table": "events", "checkpointLocation": checkpoint}, overwrite=False)


def planned_by(checkpoint):
    """What tasks would report of a batch 0 that was planned on this checkpoint."""
    return Origin(Checkpoint(checkpoint).query_id(), "run", 0, newest_uncommitted_entry(checkpoint))


def rewrite(name, text):
    """Damage that gives one of the checkpoint's files another text."""
    return lambda checkpoint: (checkpoint / name).write_text(text)


DAMAGES = [
    ("CHECKPOINT_NOT_FOUND", lambda checkpoint: (checkpoint / "metadata").unlink()),
    ("CHECKPOINT_MALFORMED", rewrite("metadata", "{")),
    ("CHECKPOINT_MALFORMED", rewrite("offsets/0", "v1")),
    ("PGONCE_TOO_OLD", rewrite("offsets/0", "v9\n{}\n3")),
    ("OTHER_CHECKPOINT", rewrite("metadata", OF_ANOTHER_QUERY)),
    ("CHECKPOINT_IN_USE", rewrite("offsets/0", 'v1\n{"batchTimestampMs":9}\n{"logOffset":0}')),
    ("OFFSETS_NOT_FOUND", lambda checkpoint: (checkpoint / "offsets" / "0").unlink()),
]


def test_a_checkpoint_that_does_not_say_which_batch_this_is_stops_the_commit(
    spark, admin, url, events, checkpoint, tmp_path, monkeypatch
):
    """Nothing is guessed: damage between planning and commit has a code of its own, and a committed batch another."""
    monkeypatch.setattr("pgonce.sink.identity.from_checkpoint.WAIT_FOR_OFFSETS_SECONDS", 0.1)
    admin.execute(TABLE)
    assert run("data source", stream(spark, events), url, checkpoint) == ""
    # A newest entry that is committed means that Spark does not run micro-batch by micro-batch.
    with pytest.raises(PgonceError, match="NOT_MICRO_BATCH"):
        newest_uncommitted_entry(checkpoint)
    (Path(checkpoint) / "commits" / "0").unlink()
    origin = planned_by(checkpoint)
    # Without the entry that the planner saw, nothing would tell that the log was rewritten since.
    with pytest.raises(PgonceError, match="NOT_CALLED_BY_SPARK"):
        batch_from_checkpoint(options_for(checkpoint), replace(origin, planned=None), None)
    for number, (code, damage) in enumerate(DAMAGES):
        damaged = shutil.copytree(checkpoint, tmp_path / f"damaged {number}")
        damage(damaged)
        with pytest.raises(PgonceError, match=f"\\[{code}\\].*Help: "):
            batch_from_checkpoint(options_for(str(damaged)), origin, None)


def test_a_transactional_function_needs_a_name():
    """The name is the sink's identity in the ledger."""
    with pytest.raises(ConfigurationError, match="OPTION_MISSING"):
        transactional_batch("", name="")
