"""
Bad input and trouble: each is refused with its code, and once repaired the same query finishes exactly-once.

Each case runs twice on one checkpoint: first into the trouble, then after it was repaired.

Covers: sink.identity.from_checkpoint, sink.identity.planned_batch, sink.recover_and_start.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.patience import PATIENCE_SECONDS

from pgonce import PostgresBatchWriter, recover_and_start, transactional_batch
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import ConfigurationError, PgonceError
from pgonce.offsets_store.ledger.migrations import grants, migrate
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
    "a generated column": Trouble(
        "COLUMN_GENERATED",
        ("CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY, name text, amount numeric(10,2))",),
        ("ALTER TABLE events ALTER id DROP IDENTITY",),
    ),
    "a text too long": Trouble(
        "VALUE_NOT_STORABLE",
        ("CREATE TABLE events (id bigint, name varchar(4), amount numeric(10,2))",),
        ("ALTER TABLE events ALTER name TYPE text",),
        says="column name",
    ),
    "a UNIQUE violation": Trouble(
        "UNIQUE_VIOLATION",
        (TABLE, "INSERT INTO events VALUES (3, 'there already', 0)", "ALTER TABLE events ADD UNIQUE (id)"),
        ("DELETE FROM events",),
        says="(id)=(3)",
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
    "a read-only server": Trouble(
        "READ_ONLY",
        (TABLE, "ALTER DATABASE {database} SET default_transaction_read_only = on"),
        ("SET default_transaction_read_only = off", "ALTER DATABASE {database} RESET default_transaction_read_only"),
    ),
    "a ledger newer than the code": Trouble(
        "LEDGER_TOO_NEW",
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


def run(way, frame, url, checkpoint, options):
    """Run the query over what there is; the text of its failure, or an empty one."""
    settings = {"table": "events", "retryTimeout": "0", **options}
    writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    try:
        if way == "data source":
            query = writer.format("pgonce").option("url", url).options(**settings).start()
        else:
            query = writer.foreachBatch(
                PostgresBatchWriter(
                    url,
                    table=settings["table"],
                    mode=settings.get("mode", "append"),
                    keys=settings.get("keys", ()),
                    retry_timeout=0,
                )
            ).start()
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
    failure = run(way, stream(spark, events), url, checkpoint, {})
    assert f"[{trouble.code}]" in failure
    assert trouble.says in failure
    assert "Help: " in failure
    for statement in trouble.repair:
        admin.execute(statement.format(database=database).encode())
    assert run(way, stream(spark, events), url, checkpoint, {}) == ""
    # Every row once: also nothing of the refused try is there.
    found = admin.execute("SELECT id, name, amount::text FROM events ORDER BY id").fetchall()
    assert found == [(row["id"], row["name"], row["amount"]) for row in ROWS]
    assert admin.execute("SELECT batch_id, rows FROM pgonce.batches").fetchall() == [(0, len(ROWS))]


@pytest.mark.parametrize(("name", "way"), list(zip(FOUND_FIRST, WAYS, strict=True)))
def test_what_needs_no_row_is_found_before_one_is_computed(name, way, spark, admin, url, events, checkpoint, tmp_path):
    """However long the first batch would take, a table that is missing or does not fit is said at once."""
    trouble, computed = TROUBLES[name], tmp_path / "computed"
    for statement in trouble.setup:
        admin.execute(statement)

    def compute(batches):
        computed.touch()
        yield from batches

    frame = stream(spark, events).mapInArrow(compute, COLUMNS)
    failure = run(way, frame, url, checkpoint, {})
    assert f"[{trouble.code}]" in failure
    assert trouble.says in failure
    assert not computed.exists()
    for statement in trouble.repair:
        admin.execute(statement)
    # The rows do come by there, when they are computed.
    assert run(way, frame, url, checkpoint, {}) == ""
    assert computed.exists()
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (len(ROWS),)


@pytest.mark.parametrize("way", [WAYS[0], "function"])
def test_a_rival_is_found_before_a_row_is_computed(way, spark, admin, url, events, checkpoint, tmp_path):
    """A second query of the table, on a new checkpoint, is FOREIGN at once; a backfill does not pay hours for that."""
    admin.execute(TABLE)
    computed = tmp_path / "computed"

    def compute(batches):
        computed.touch()
        yield from batches

    def start(frame, place):
        if way != "function":
            return run(way, frame, url, place, {})
        write = transactional_batch(url, name="events")(lambda batch, tx: tx.append(batch, "events"))
        try:
            start_function(frame, write, place).awaitTermination(PATIENCE_SECONDS)
        except PySparkException as error:
            return str(error)
        return ""

    assert start(stream(spark, events), checkpoint) == ""
    frame = stream(spark, events).mapInArrow(compute, COLUMNS)
    assert "[FOREIGN]" in start(frame, str(tmp_path / "another"))
    assert not computed.exists()


@pytest.mark.parametrize(
    ("way", "name", "said"),
    [(WAYS[0], "if(id = 3, 'a\\u0000b', name)", "NUL"), (WAYS[1], "if(id = 3, null, name)", "[NOT_NULL_VIOLATION]")],
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_column(
    way, name, said, spark, admin, url, events, checkpoint
):
    """The batch stops, the error names the column, and nothing of the batch is written."""
    admin.execute(f"{TABLE}; ALTER TABLE events ALTER name SET NOT NULL")
    frame = stream(spark, events).selectExpr("id", f"{name} AS name", "amount")
    failure = run(way, frame, url, checkpoint, {})
    assert said in failure
    assert "name" in failure
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


@pytest.mark.parametrize(
    ("way", "expression", "code"), [(WAYS[0], "id % 2", "DOUBLED_KEYS"), (WAYS[1], "nullif(id, 3)", "NULL_KEYS")]
)
def test_keys_that_tell_no_rows_apart_are_refused(way, expression, code, spark, admin, url, events, checkpoint):
    """Doubled and NULL keys stop an upsert: which row should win is not for pgonce to guess."""
    admin.execute("CREATE TABLE events (id bigint UNIQUE, name text)")
    frame = stream(spark, events).selectExpr(f"{expression} AS id", "name")
    assert f"[{code}]" in run(way, frame, url, checkpoint, {"mode": "upsert", "keys": "id"})
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_no_privileges_are_named_and_granting_them_is_enough(spark, admin, url, login, events, checkpoint):
    """A role without rights hears what it lacks, one right after the other, and never its password."""
    admin.execute(TABLE)
    first = run("data source", stream(spark, events), login.url, checkpoint, {})
    assert "[TARGET_NOT_PERMITTED]" in first
    admin.execute(f'GRANT INSERT ON events TO "{login.user}"'.encode())
    second = run("data source", stream(spark, events), login.url, checkpoint, {})
    assert "[LEDGER_NOT_PERMITTED]" in second
    migrate(admin)
    for statement in grants(login.user):
        admin.execute(statement.encode())
    assert run("data source", stream(spark, events), login.url, checkpoint, {}) == ""
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (len(ROWS),)
    assert login.password not in first + second


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_password_is_refused_and_never_shown(way, spark, login, events, checkpoint, caplog):
    """Wrong credentials fail at once, and neither the error nor the driver's log shows them."""
    # Not Py4J's own wire log, which repeats whatever a program sends to the JVM.
    caplog.set_level(logging.DEBUG, logger="pgonce")
    wrong = login.url.replace(login.url.split(":")[2].split("@")[0], "wr0ngp4ss")
    failure = run(way, stream(spark, events), wrong, checkpoint, {"retryTimeout": "30"})
    assert "[CONNECT_REFUSED]" in failure
    # What the JVM and its Python workers print is read by tests/security/test_secrets.py.
    assert "wr0ngp4ss" not in failure + caplog.text


def test_an_unreachable_server_is_named(spark, events, checkpoint):
    """A server that does not answer is tried again for retryTimeout, and then named without the password."""
    url = "postgresql://u:s3cretpass@127.0.0.1:9/db"
    failure = run("batch writer", stream(spark, events), url, checkpoint, {})
    assert "[CONNECT_FAILED]" in failure
    assert "127.0.0.1" in failure
    assert "s3cretpass" not in failure


def test_a_bad_url_is_refused_without_showing_it(spark, events, checkpoint):
    """A connection string that libpq cannot read is not repeated: it may hold a password."""
    failure = run("data source", stream(spark, events), "host=db pass word=s3cretpass", checkpoint, {})
    assert "[BAD_URL]" in failure
    assert "s3cretpass" not in failure


def test_no_password_reaches_plan_event_or_ledger(spark, admin, login, events, checkpoint, capfd):
    """The url's password is in no plan, progress event or table of the ledger."""
    migrate(admin)
    admin.execute(TABLE)
    for statement in (*grants(login.user), f'GRANT INSERT ON events TO "{login.user}"'):
        admin.execute(statement.encode())
    query = (
        stream(spark, events)
        .writeStream.format("pgonce")
        .options(url=login.url, table="events", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(PATIENCE_SECONDS)
    query.explain(extended=True)
    # Python prints the plan.
    plan = capfd.readouterr().out
    assert "pgonce" in plan
    ledger = admin.execute(
        "SELECT string_agg(w::text || b::text, ' ') FROM pgonce.writers w, pgonce.batches b"
    ).fetchone()
    everywhere = [plan, str(query.recentProgress), str(query.lastProgress), str(ledger)]
    assert not [text for text in everywhere if login.password in text]
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (len(ROWS),)


def test_bad_options_stop_the_query_before_any_row_moves(spark, admin, url, events, checkpoint):
    """A misspelt option is refused with the right name, and no ledger is made for it."""
    failure = run("data source", stream(spark, events), url, checkpoint, {"inlineByte": "5"})
    assert "[UNKNOWN_OPTION]" in failure
    assert "Did you mean inlineBytes?" in failure
    assert admin.execute("SELECT to_regclass('pgonce.writers')").fetchone() == (None,)


def test_a_checkpoint_that_only_the_session_names_is_refused(spark, url, events, checkpoint):
    """A checkpoint location of the session's configuration is not shown to a Python sink."""
    spark.conf.set("spark.sql.streaming.checkpointLocation", checkpoint)
    try:
        query = (
            stream(spark, events).writeStream.format("pgonce").options(url=url, table="events").queryName("only_conf")
        ).start()
        with pytest.raises(PySparkException, match="NO_CHECKPOINT_LOCATION"):
            query.awaitTermination(PATIENCE_SECONDS)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_update_mode_is_refused_by_spark_for_the_data_source(spark, url, events, checkpoint):
    """Spark itself refuses update mode for a Python data source."""
    frame = stream(spark, events).groupBy("name").count()
    with pytest.raises(PySparkException, match="(?i)update"):
        (
            frame.writeStream.format("pgonce")
            .options(url=url, table="events", checkpointLocation=checkpoint)
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
            .awaitTermination(PATIENCE_SECONDS)
        )


def test_recover_and_start_refuses_update_mode_with_a_way_out(spark, url, events, checkpoint):
    """Spark's own words name none; here the query is not even started."""
    frame = stream(spark, events).groupBy("name").count()
    writer = frame.writeStream.format("pgonce").options(url=url, table="events").outputMode("update")
    with pytest.raises(PgonceError, match=r"\[UPDATE_MODE\].*Help: .*PostgresBatchWriter"):
        recover_and_start(writer, checkpoint, url)
    assert not Path(checkpoint).exists()


FORCED_ASYNC = {"asyncProgressTrackingEnabled": "true", "_asyncProgressTrackingOverrideSinkSupportCheck": "true"}


def test_asynchronous_progress_tracking_without_positions_is_refused(spark, admin, url, checkpoint):
    """With Spark's own allow list switched off, a sparse log without positions stops before a row is written."""
    admin.execute("CREATE TABLE events (value bigint, timestamp timestamptz)")
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    options = {"url": url, "table": "events", "checkpointLocation": checkpoint, **FORCED_ASYNC}
    query = frame.writeStream.format("pgonce").options(**options).start()
    with pytest.raises(PySparkException, match="ASYNC_PROGRESS"):
        query.awaitTermination(PATIENCE_SECONDS)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_the_continuous_trigger_is_refused(spark, admin, url, checkpoint):
    """A continuous query, which would drop every row, stops with an error before a row is lost to it."""
    admin.execute("CREATE TABLE events (value bigint, timestamp timestamptz)")
    frame = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = (
        frame.writeStream.format("pgonce")
        .options(url=url, table="events", checkpointLocation=checkpoint)
        .trigger(continuous="1 second")
        .start()
    )
    with pytest.raises(PySparkException, match="NOT_MICRO_BATCH"):
        query.awaitTermination(PATIENCE_SECONDS)


@pytest.mark.thorough
def test_the_continuous_trigger_is_refused_with_asynchronous_options_too(spark, admin, url, checkpoint):
    """Where the entry of a batch may come late, no entry at all still tells that Spark runs continuously."""
    admin.execute("CREATE TABLE events (value bigint, timestamp timestamptz)")
    frame = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    options = {"url": url, "table": "events", **FORCED_ASYNC, "asyncProgressTrackingCheckpointIntervalMs": "0"}
    writer = frame.writeStream.format("pgonce").options(**options).trigger(continuous="1 second")
    query = writer.option("checkpointLocation", checkpoint).start()
    with pytest.raises(PySparkException, match="NOT_MICRO_BATCH"):
        query.awaitTermination(PATIENCE_SECONDS)
    assert not list(Path(checkpoint, "commits").iterdir())
    with pytest.raises(PgonceError, match="NOT_MICRO_BATCH"):
        recover_and_start(writer, checkpoint + "-2", url)


def test_foreach_batch_without_a_checkpoint_location_is_refused(spark, admin, url, events):
    """A temporary checkpoint means a new query id at every start, so nothing could tell a replay."""
    admin.execute(TABLE)
    query = stream(spark, events).writeStream.foreachBatch(PostgresBatchWriter(url, table="events")).start()
    with pytest.raises(PySparkException, match="TEMPORARY_CHECKPOINT"):
        query.awaitTermination(PATIENCE_SECONDS)


def test_a_writer_called_outside_foreach_batch_is_refused(spark, admin, url):
    """A plain DataFrame has no batch id and no offsets."""
    admin.execute(TABLE)
    with pytest.raises(Exception, match="NOT_IN_FOREACH_BATCH"):
        PostgresBatchWriter(url, table="events")(spark.range(3), 0)


def start_function(frame, function, checkpoint):
    """Start a query that hands its batches to ``function``."""
    writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        (
            "OFFSETS_REWRITTEN",
            "offsets/0",
            'v1\n{"batchWatermarkMs":0,"batchTimestampMs":9,"conf":{}}\n{"logOffset":0}',
        ),
        ("OTHER_CHECKPOINT", "metadata", '{"id":"11111111-1111-1111-1111-111111111111"}'),
    ],
)
def test_a_checkpoint_that_another_driver_took_over_stops_the_function(
    code, name, text, spark, admin, url, events, checkpoint
):
    """Where two drivers both believe that an entry is theirs, the one whose entry was overwritten publishes nothing."""
    admin.execute(TABLE)
    write = PostgresBatchWriter(url, table="events")

    def late(frame, batch_id):
        # As the other driver would, between Spark's own write and ours.
        (Path(checkpoint) / name).write_text(text)
        write(frame, batch_id)

    with pytest.raises(PySparkException, match=rf"\[{code}\]"):
        start_function(stream(spark, events), late, checkpoint).awaitTermination(PATIENCE_SECONDS)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


@pytest.mark.parametrize(
    "statements",
    [
        ("COMMIT",),
        ("COMMIT", "BEGIN"),
        ("ROLLBACK AND CHAIN",),
        pytest.param(("ROLLBACK",), marks=pytest.mark.thorough),
        pytest.param(("ROLLBACK", "BEGIN"), marks=pytest.mark.thorough),
        pytest.param(("COMMIT AND CHAIN",), marks=pytest.mark.thorough),
    ],
)
def test_transaction_control_inside_a_function_is_refused(statements, spark, admin, url, events, checkpoint):
    """Whatever the function's SQL does to its transaction, rows are never written without their offsets."""
    admin.execute(TABLE)

    @transactional_batch(url, name="events", retry_timeout=0)
    def write(batch, tx):
        tx.append(batch, "events")
        for statement in statements:
            tx.execute(statement)
        tx.execute("INSERT INTO events VALUES (-1, 'after', 0)")

    query = start_function(stream(spark, events), write, checkpoint)
    with pytest.raises(PySparkException, match="TRANSACTION_ENDED"):
        query.awaitTermination(PATIENCE_SECONDS)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert admin.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (0,)


def test_an_error_that_the_function_swallows_is_found(spark, admin, url, events, checkpoint):
    """A failed statement ends the transaction for Postgres, even where the function looks away."""
    admin.execute(TABLE)

    @transactional_batch(url, name="events", retry_timeout=0)
    def write(batch, tx):
        tx.append(batch, "events")
        try:
            tx.execute("SELECT 1/0")
        except Exception:
            pass

    query = start_function(stream(spark, events), write, checkpoint)
    with pytest.raises(PySparkException, match="STATEMENT_FAILED"):
        query.awaitTermination(PATIENCE_SECONDS)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_an_error_of_the_functions_own_rolls_everything_back(spark, admin, url, events, checkpoint):
    """What the function raises reaches the user as it is, and nothing of the batch stays."""
    admin.execute(TABLE)

    @transactional_batch(url, name="events")
    def write(batch, tx):
        tx.append(batch, "events")
        raise ValueError("the shop is closed")

    query = start_function(stream(spark, events), write, checkpoint)
    with pytest.raises(PySparkException, match="the shop is closed"):
        query.awaitTermination(PATIENCE_SECONDS)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


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
    ("CHECKPOINT_VERSION", rewrite("offsets/0", "v9\n{}\n3")),
    ("OTHER_CHECKPOINT", rewrite("metadata", '{"id":"11111111-1111-1111-1111-111111111111"}')),
    ("OFFSETS_REWRITTEN", rewrite("offsets/0", 'v1\n{"batchTimestampMs":9}\n{"logOffset":0}')),
    ("OFFSETS_NOT_FOUND", lambda checkpoint: (checkpoint / "offsets" / "0").unlink()),
]


def test_a_checkpoint_that_does_not_say_which_batch_this_is_stops_the_commit(
    spark, admin, url, events, checkpoint, tmp_path, monkeypatch
):
    """Nothing is guessed: damage between planning and commit has a code of its own, and a committed batch another."""
    monkeypatch.setattr("pgonce.sink.identity.from_checkpoint.WAIT_FOR_OFFSETS_SECONDS", 0.1)
    admin.execute(TABLE)
    assert run("data source", stream(spark, events), url, checkpoint, {}) == ""
    # A newest entry that is committed means that Spark does not run micro-batch by micro-batch.
    with pytest.raises(PgonceError, match="NOT_MICRO_BATCH"):
        newest_uncommitted_entry(checkpoint)
    (Path(checkpoint) / "commits" / "0").unlink()
    origin = planned_by(checkpoint)
    # Without the entry that the planner saw, nothing would tell that the log was rewritten since.
    with pytest.raises(PgonceError, match="NO_IDENTITY"):
        batch_from_checkpoint(options_for(checkpoint), replace(origin, planned=None), None)
    for number, (code, damage) in enumerate(DAMAGES):
        damaged = shutil.copytree(checkpoint, tmp_path / f"damaged {number}")
        damage(damaged)
        with pytest.raises(PgonceError, match=f"\\[{code}\\].*Help: "):
            batch_from_checkpoint(options_for(str(damaged)), origin, None)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"table": ""}, "NO_TABLE"),
        ({"table": "t", "mode": "upsert", "create_table": True}, "NO_KEYS"),
        ({"table": "t", "mode": "merge"}, "BAD_OPTION"),
        ({"table": "t", "retain_batches": 5}, "BAD_OPTION"),
    ],
)
def test_bad_arguments_are_refused_when_the_writer_is_made(arguments, code):
    """A writer that cannot work is refused before the query starts."""
    with pytest.raises(ConfigurationError, match=code):
        PostgresBatchWriter("", **arguments)


def test_a_transactional_function_needs_a_name():
    """The name is the sink's identity in the ledger."""
    with pytest.raises(ConfigurationError, match="NO_SINK_NAME"):
        transactional_batch("", name="")
