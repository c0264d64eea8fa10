"""What a streaming role needs is what docs/security.md grants it: that is enough, and nothing of it can be spared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.committed_batch import commit, quoted, rows_in
from support.dead_letters import put_aside as put_letter_aside
from support.ledger_history import publish_job
from support.real_time_tasks import Task, begun
from support.recoveries import history
from support.sent_rows import publish
from support.stopped_query import entries, write_checkpoint
from typer.testing import CliRunner, Result

from pgonce.cli.main import app
from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.failures import Failed, keep_in_tx, row_of
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants, ledgers_seen, migrate
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.postgres.connect import connect, driver_connection, engine_for
from pgonce.offsets_store.progress.heard import Heard
from pgonce.offsets_store.progress.heartbeats import Heartbeats
from pgonce.offsets_store.progress.stored_progress import store_progress_in_tx
from pgonce.offsets_store.status.states import MeasuredLag
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.serve.lag import store_in_tx as store_measured_in_tx
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import OF_JOB, StagingTable, drop_staging_table, sweep, sweep_jobs

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
TABLES = """
CREATE SCHEMA sales;
CREATE TABLE sales.orders (id bigint, name text);
CREATE TABLE sales.totals (id bigint PRIMARY KEY, name text);
CREATE TABLE sales.report (id bigint, name text);
CREATE TABLE sales.copy (id bigint PRIMARY KEY, seq bigint);
CREATE TABLE sales.wages (id bigint, name text);
"""
APPEND = destination("sales.orders")
UPSERT = destination("sales.totals", "upsert", ("id",))
COMPLETE = destination("sales.report", "complete")


def granted_in_the_document(role: str) -> list[str]:
    """The GRANT statements of a block of docs/security.md, by the role that they are for."""
    blocks = re.findall(r"^```sql\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if f" TO {role};" in block]
    statements = re.sub(r"--.*", "", block).split(";")
    return [" ".join(statement.split()) for statement in statements if statement.strip()]


@dataclass(frozen=True)
class Streamer:
    """A role with the document's grants, as an administrator sees it."""

    url: str
    user: str
    admin: psycopg.Connection

    def grant(self, statements) -> None:
        """Run GRANT statements of the document for this role and database."""
        for statement in statements:
            self.admin.execute(self._for_this(statement).encode())

    @contextmanager
    def without(self, grant: str) -> Iterator[None]:
        """Take one grant away for a while."""
        revoke = re.sub(r" TO (\S+)$", r" FROM \1", self._for_this(grant).replace("GRANT", "REVOKE", 1))
        self.admin.execute(revoke.encode())
        engine_for(self.url).dispose()
        ledgers_seen.clear()
        yield
        self.admin.execute(self._for_this(grant).encode())

    def _for_this(self, statement: str) -> str:
        statement = statement.replace("DATABASE shop", f"DATABASE {quoted(self.admin.info.dbname)}")
        return re.sub(r' TO "?(streamer|viewer|operator)"?$', f" TO {quoted(self.user)}", statement)


@pytest.fixture
def streamer(url, login) -> Iterator[Streamer]:
    """A role that has what the document and `pgonce init --role` give, in a database that grants nothing to PUBLIC."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(TABLES)
        migrate(admin)
        admin.execute(f"REVOKE ALL ON DATABASE {quoted(admin.info.dbname)} FROM PUBLIC".encode())
        role = Streamer(login.url, login.user, admin)
        role.grant(granted_in_the_document("streamer"))
        role.grant(grants(login.user))
        yield role
        engine_for(login.url).dispose()


# What a recovery and `pgonce accept` write.
ACCEPT = """
INSERT INTO pgonce.interventions (writer_id, kind, batch_id, reason)
SELECT writer_id, 'accept', 7, 'a test' FROM pgonce.writers WHERE query_id = %s
"""
ANOTHER_TABLE = """UPDATE pgonce.writers SET targets = '{"sales.report": 1}' WHERE query_id = %s"""


def everything_that_a_streaming_role_does(streamer: Streamer, query_id: str) -> None:
    """Publish in every mode by both transports, replay, sweep, use an acceptance, look, and store a progress event."""
    url = streamer.url
    for number, (where, staged) in enumerate(
        [(APPEND, False), (APPEND, True), (UPSERT, False), (UPSERT, True), (COMPLETE, False), (COMPLETE, True)]
    ):
        # Another query each time: batch 0 is the one that prunes, and that a new run owns.
        batch = {"query_id": f"{query_id} {number}", "end": None, "start": None}
        assert commit(url, make_planned_batch(**batch), where, staged=staged, independent=True) is Verdict.NEW
        assert commit(url, make_planned_batch(**batch, run_id="run 2"), where) is Verdict.REPLAY
        if staged:
            with connect(url, autocommit=True) as connection:
                sweep(connection, batch["query_id"], where.table, "run 1", 0)
    with connect(url, autocommit=True) as connection:
        connection.execute(ACCEPT, [f"{query_id} 4"])
        # As if the table had been another one, which is noted with the next batch.
        connection.execute(ANOTHER_TABLE, [f"{query_id} 4"])
    accepted = make_planned_batch(7, query_id=f"{query_id} 4", end=None, start=None)
    assert commit(url, accepted, COMPLETE) is Verdict.ACCEPTED
    assert OffsetsStore(url).latest(f"{query_id} 0").replays == 1
    apply_changes(url)
    use_a_restored_ledger(url)
    run_batch_jobs(url, query_id)
    put_aside(url)
    write_in_real_time(url, f"{query_id} real time")
    with connect(url) as connection:
        connection.execute("SELECT * FROM pgonce.current_offsets, pgonce.dead_letters")
    store_progress(url, f"{query_id} 0")
    tell_states(url, f"{query_id} 0")


def write_in_real_time(url: str, query_id: str) -> None:
    """Begin a run, and let one of its tasks claim a partition and flush a row."""
    run = begun(url, query_id=query_id, table="sales.orders", remedies=Remedies(independent=True))
    task = Task(url, run)
    with task.connection:
        assert task.claims()
        assert task.flushes(0)


def tell_states(url: str, query_id: str) -> None:
    """Keep a failure, say that a run is alive and how far it is behind, and look at what all this means."""
    failed = Failed(seen_by="commit", query_id=query_id, run_id="run 1")
    runs = Heartbeats()
    runs.start(query_id, "run 1", None)
    lag = MeasuredLag(query_id, "sales.orders", 3, 0.5, 1.0, datetime.now(timezone.utc))
    with writing(url) as connection:
        keep_in_tx(driver_connection(connection), row_of(failed, "LOCKED", "It was held."))
        runs.store_in_tx(connection)
        store_measured_in_tx(connection, [lag])
    store = OffsetsStore(url)
    assert store.failures() != []
    store.states()
    store.health()


CHANGES = t.StructType([
    t.StructField("id", t.LongType()),
    t.StructField("seq", t.LongType()),
    t.StructField("gone", t.BooleanType()),
])  # fmt: skip


def apply_changes(url: str) -> None:
    """Write and delete rows, and remember the deletes."""
    how = {"mode": "apply", "delete_when": "gone", "order_by": "seq", "only_newer": True, "table": "sales.copy"}
    for rows in ([(1, 1, False), (2, 1, False)], [(1, 2, True), (2, 2, False)]):
        publish(url, "inline", CHANGES, rows, **how)


def use_a_restored_ledger(url: str) -> None:
    """Look tables up by their names, as at the first session after a dump was restored."""
    with connect(url, autocommit=True) as connection:
        connection.execute("UPDATE pgonce.home SET written_in = 0")
    ledgers_seen.clear()
    ensure_ledger(url)


def put_aside(url: str) -> None:
    """Write a row, and put aside another one, which has no key."""
    how = {"mode": "apply", "delete_when": "gone", "order_by": "seq", "table": "sales.copy", "dead_letters": True}
    result = publish(url, "inline", CHANGES, [(3, 1, False), (None, 1, False)], **how)
    assert result.counts["dead_letters"] == 1


def run_batch_jobs(url: str, key: str) -> None:
    """Publish a batch job, skip it, give one up that has staged rows, sweep, and look."""
    work = Work(lambda _: "sales.orders", lambda *_: Published(0, "inline"))
    for verdict in (JobVerdict.PUBLISHED, JobVerdict.SKIPPED):
        assert commit_job(CommitSettings(url, retry_timeout=0), Job(key, uuid4()), work).verdict is verdict
    with connect(url, autocommit=True) as connection:
        drop_staging_table(connection, StagingTable(OF_JOB + key, "sales.orders", str(uuid4()), 0).name)
        sweep_jobs(connection, "sales.orders", "another run")
        skips = connection.execute("SELECT attempt FROM pgonce.batch_job_skips WHERE batch_key = %s", (key,)).fetchall()
    assert len(skips) == 1


def store_progress(url: str, query_id: str) -> None:
    """What the listener does with an event."""
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    heard = Heard(query_id, "run 1", 0, None, at, 2, {}, {"0": 1}, {}, {})
    with engine_for(url).begin() as connection:
        store_progress_in_tx(connection, heard)


def test_what_the_document_grants_is_enough(streamer):
    """A role with these grants, and no others, publishes in every mode, inline and staged, and skips replays."""
    everything_that_a_streaming_role_does(streamer, "q")
    written = [(0, "0"), (1, "one"), (1, "one"), (2, "two"), (2, "two")]
    assert rows_in(streamer.admin, "sales.orders") == written
    assert (
        rows_in(streamer.admin, "sales.totals") == rows_in(streamer.admin, "sales.report") == [(1, "one"), (2, "two")]
    )
    left = streamer.admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone()
    assert left == (0,)


def single_grants(statements) -> list[str]:
    """The same grants, one privilege on one object a statement."""
    found = []
    for statement in statements:
        privileges, objects, role = re.fullmatch(r"GRANT (.+) ON (.+) TO (.+)", statement).groups()
        kind = re.match(r"(DATABASE |SCHEMA )?", objects)[0]
        found += [
            f"GRANT {privilege} ON {kind}{name} TO {role}"
            for privilege in privileges.split(", ")
            for name in objects.removeprefix(kind).split(", ")
        ]
    return found


GRANTS = [*granted_in_the_document("streamer"), *single_grants(grants("streamer"))]


def test_every_grant_is_needed_and_its_absence_is_named(streamer):
    """Without any one of them something fails, with a code, and the text names the object that lacks it."""
    assert len(GRANTS) == 13 + 3 + 21 + 24 + 6 + 10 + 5
    unexplained = []
    for number, grant in enumerate(GRANTS):
        with streamer.without(grant):
            told = failure_of(lambda of=number: everything_that_a_streaming_role_does(streamer, f"q{of}"))
        if not re.search(what_is_said_without(grant, streamer.admin.info.dbname), told):
            unexplained.append((grant, told))
    assert unexplained == []


def failure_of(attempt) -> str:
    """What an attempt raises, as text; empty where it succeeds."""
    try:
        attempt()
    except Exception as error:
        return str(error)
    return ""


def what_is_said_without(grant: str, database: str) -> str:
    """The code and Postgres's words that must come when this grant is missing."""
    privilege, kind, name = re.fullmatch(r"GRANT (\w+) ON (DATABASE |SCHEMA )?(?:\w+\.)?(\w+) TO .*", grant).groups()
    if privilege == "TEMPORARY":
        return rf"\[TARGET_NOT_PERMITTED\].*temporary tables in database \"{database}\""
    if kind == "DATABASE ":
        return rf"\[CONNECT_REFUSED\].*permission denied for database \"{database}\""
    denied = f"permission denied for (view|{kind.strip().lower() if kind else 'table'}) {name}"
    # What the sweep, the listener and a reader meet raises as it is; the first and the second only log it.
    return rf"(\[((LEDGER|TARGET)_NOT_PERMITTED|LEDGER_RESTORED|STAGING_FAILED)\].*|^(\(psycopg.*\) )?){denied}"


def test_the_role_reads_and_writes_nothing_else(streamer, login):
    """Not the rows of its own append target, not other tables, not passwords, and not what another role has staged."""
    theirs = StagingTable("theirs", "t", "run", 0)
    streamer.admin.execute(f"CREATE TABLE {theirs.qualified_name} (id bigint)".encode())
    with psycopg.connect(streamer.url, autocommit=True) as connection:
        for statement in (
            "SELECT FROM sales.orders",
            "DELETE FROM sales.orders",
            "UPDATE sales.orders SET id = 0",
            "TRUNCATE sales.report",
            "SELECT FROM sales.report",
            "SELECT FROM sales.wages",
            "INSERT INTO sales.wages VALUES (1)",
            "SELECT FROM pg_authid",
            f"SELECT FROM {theirs.qualified_name}",
            "DELETE FROM pgonce.writers",
            "UPDATE pgonce.schema_version SET version = 9",
            "CREATE TRIGGER t BEFORE INSERT ON pgonce.writers EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "CREATE FUNCTION pgonce.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE SCHEMA mine",
            "CREATE TABLE sales.mine (id bigint)",
            "CREATE ROLE mine",
            "COPY (SELECT 1) TO PROGRAM 'true'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_a_staging_table_that_another_role_prepared_is_refused(streamer, url):
    """A trigger on it would run as the streaming role, so a table of another's is never written to."""
    batch = make_planned_batch(query_id="lured")
    trap = StagingTable(batch.query_id, APPEND.table, batch.run_id, 0)
    streamer.admin.execute(
        f"""
        CREATE TABLE pgonce_staging.{trap.name} (pgonce_task_attempt bigint DEFAULT -1, id bigint, name text);
        GRANT ALL ON pgonce_staging.{trap.name} TO PUBLIC;
        CREATE TABLE public.canary (dead boolean);
        CREATE FUNCTION public.bite() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
            AS 'BEGIN INSERT INTO public.canary VALUES (true); RETURN NEW; END';
        CREATE TRIGGER bite BEFORE INSERT ON pgonce_staging.{trap.name} FOR EACH ROW EXECUTE FUNCTION public.bite();
        """.encode()
    )
    with pytest.raises(PgonceError, match="STAGING_FAILED.*belongs to role"):
        commit(streamer.url, batch, APPEND, staged=True)
    assert rows_in(streamer.admin, "public.canary") == rows_in(streamer.admin, "sales.orders") == []


def test_a_role_that_only_looks_can_look_and_no_more(streamer, login, postgres_server):
    """The document's second block is enough for `pgonce status` and for wait_for, and writes nothing."""
    everything_that_a_streaming_role_does(streamer, "q")
    streamer.admin.execute(f"DROP OWNED BY {quoted(streamer.user)}".encode())
    engine_for(streamer.url).dispose()
    streamer.grant(granted_in_the_document("viewer"))
    assert OffsetsStore(streamer.url).latest("q 0").batch_id == 0
    assert len(OffsetsStore(streamer.url).history("q 0")) == 1
    with psycopg.connect(streamer.url) as reader:
        reached = reader.execute("""SELECT pgonce.wait_for('q 0', '{}')""").fetchone()
    assert reached == (OffsetsStore(streamer.url).wait_for("q 0", {}, 0),) == (True,)
    ledgers_seen.clear()
    with pytest.raises(PgonceError, match="NOT_PERMITTED"):
        commit(streamer.url, make_planned_batch(1), APPEND)


READS = ("status", "offsets orders", "history orders", "doctor {}")
SHOWS = (
    "recover {}",
    "accept orders --batch 10 --reason test --checkpoint {}",
    "retire orders",
    "forget orders --reason test",
)
LETTERS = ("dead-letters orders", "dead-letters orders --replay", "dead-letters orders --discard --reason test")


@pytest.fixture
def looked_at(url, login, tmp_path, monkeypatch) -> Iterator[tuple[Streamer, Callable[[str], Result]]]:
    """A role that has no grant yet, and its commands on a query with a checkpoint, a dead letter and a batch job."""
    history(url, 9)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", entries(*range(10)), range(10))
    publish_job(url, "2026-11-20")
    monkeypatch.setenv("PGONCE_URL", login.url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE TABLE orders (id bigint); CREATE TABLE orders_new (id bigint); CREATE TABLE events ()")
        put_letter_aside(admin, {"id": 1, "name": "x"})
        yield (
            Streamer(login.url, login.user, admin),
            lambda command: CliRunner().invoke(app, command.format(checkpoint).split()),
        )
        engine_for(login.url).dispose()


def test_which_commands_a_role_that_only_looks_can_run(looked_at):
    """All that read, and all that show what they would do, but for a replay, which tries to write."""
    viewer, run = looked_at
    *ledger, of_letters = granted_in_the_document("viewer")
    viewer.grant(ledger)
    answers = {command: run(command) for command in (*READS, *SHOWS)}
    failed = {command: answer.stderr for command, answer in answers.items() if answer.exit_code != ExitCode.OK}
    assert list(failed) == [SHOWS[1]], failed
    # It has read all that it asks for: the batch would not be refused.
    assert "[NOTHING_TO_DO]" in failed[SHOWS[1]]
    assert ["NOT_PERMITTED" in run(command).stderr for command in LETTERS] == [True] * len(LETTERS)
    # The page of one query has its newest dead letters.
    assert "NOT_PERMITTED" in run("status orders").stderr
    viewer.grant([of_letters])
    assert run("status orders").exit_code == ExitCode.OK
    shown, tried, discarded = map(run, LETTERS)
    assert (shown.exit_code, discarded.exit_code) == (ExitCode.OK, ExitCode.OK)
    assert tried.exit_code == ExitCode.FAILED
    assert "NOT_PERMITTED" in tried.stderr


@pytest.mark.parametrize(
    "command",
    [
        "retire orders --yes",
        "forget orders --reason test --yes --quiet-for 0",
        f"{LETTERS[2]} --yes",
        "init --role pg_monitor",
    ],
)
def test_a_role_that_only_looks_changes_nothing(looked_at, command):
    """A command that would change the ledger is refused to it."""
    viewer, run = looked_at
    viewer.grant(granted_in_the_document("viewer"))
    before = [rows_in(viewer.admin, f"pgonce.{table}") for table in ("writers", "dead_letters", "interventions")]
    answer = run(command)
    assert answer.exit_code == ExitCode.FAILED
    assert "NOT_PERMITTED]" in answer.stderr
    after = [rows_in(viewer.admin, f"pgonce.{table}") for table in ("writers", "dead_letters", "interventions")]
    assert after == before


def test_a_role_that_decides_by_hand(looked_at):
    """With the document's grants for it, and INSERT on the table, it replays, discards and retires."""
    operator, run = looked_at
    operator.admin.execute("DROP TABLE events; CREATE TABLE events (id bigint, name text)")
    put_letter_aside(operator.admin, {"id": 2, "name": "y"})
    operator.grant(granted_in_the_document("viewer"))
    operator.grant(granted_in_the_document("operator"))
    operator.admin.execute(f"GRANT INSERT ON events TO {quoted(operator.user)}".encode())
    first, second = (
        row[0] for row in operator.admin.execute("SELECT dead_letter_id FROM pgonce.dead_letters ORDER BY 1")
    )
    for command in (
        f"dead-letters orders --replay --id {first} --yes",
        f"dead-letters orders --discard --reason test --id {second} --yes",
        "retire orders --yes",
    ):
        answer = run(command)
        assert (answer.exit_code, answer.stderr) == (ExitCode.OK, ""), command
    kinds = [row[0] for row in operator.admin.execute("SELECT kind FROM pgonce.interventions ORDER BY intervention_id")]
    assert kinds == ["replay-dead-letters", "discard-dead-letters", "retire"]


def test_doctor_needs_the_interventions(looked_at):
    """Without the grant on them, the other commands that read go on, and doctor says what is missing."""
    viewer, run = looked_at
    viewer.grant(granted_in_the_document("viewer"))
    for table in ("interventions", "staged_tables"):
        viewer.admin.execute(f"REVOKE SELECT ON pgonce.{table} FROM {quoted(viewer.user)}".encode())
    codes = [run(command).exit_code for command in READS]
    assert codes == [ExitCode.OK] * (len(READS) - 1) + [ExitCode.FAILED]
    assert "permission denied for table interventions" in run(READS[-1]).stderr


def test_dead_letters_can_be_counted_without_being_read(looked_at):
    """With the grant on some columns a query that counts them runs, and the rows that were put aside stay hidden."""
    viewer, _ = looked_at
    [columns] = re.findall(r"`(GRANT SELECT \([^`]+)`", " ".join(DOCUMENT.read_text().split()))
    viewer.grant([*granted_in_the_document("viewer")[:-1], f"{columns} TO viewer"])
    count = "SELECT query_id, sink_name, target, code, count(*) FROM pgonce.dead_letters GROUP BY 1, 2, 3, 4"
    with psycopg.connect(viewer.url, autocommit=True) as connection:
        assert connection.execute(count).fetchall() != []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT row_data FROM pgonce.dead_letters")


def test_a_view_shows_the_dead_letters_of_one_table(looked_at):
    """As the page about dead letters writes it: to a role that may read nothing else of the ledger."""
    viewer, _ = looked_at
    page = (DOCUMENT.parent / "dead-letters.md").read_text()
    [view, grant] = re.findall(r"^(?:CREATE VIEW|GRANT SELECT ON) app\.bad_events .*;$", page, re.MULTILINE)
    put_letter_aside(viewer.admin, {"id": 1}, target="sales.wages")
    viewer.admin.execute(f"CREATE SCHEMA app; {view}".encode())
    viewer.grant([grant.replace("analysts", "viewer").rstrip(";"), "GRANT USAGE ON SCHEMA app TO viewer"])
    with psycopg.connect(viewer.url, autocommit=True) as connection:
        assert connection.execute("SELECT DISTINCT target FROM app.bad_events").fetchall() == [("public.events",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT FROM pgonce.dead_letters")
