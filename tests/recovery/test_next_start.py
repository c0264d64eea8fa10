"""
Which batch Spark runs at the next start, what each sink will say to it, and which new queries a table refuses.

Covers: offsets_store.ledger.writers, pgonce.recovery.forget.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import replace

import psycopg
import pytest
from support.committed_rows import TABLE, rows
from support.stopped_query import checkpoint, entries, entry, kafka, published_to, write_checkpoint
from support.with_rooms import work_into

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.recovery.by_hand import retire_sink
from pgonce.recovery.doctor import Finding, examine
from pgonce.recovery.next_start import NextStart, next_start, verdict_on
from pgonce.sink.identity.from_checkpoint import Origin, describe_batch
from pgonce.sink.options.destination import destination


class TestNextStart:
    @pytest.mark.parametrize(
        ("offsets", "commits", "expected"),
        [
            ((), (), NextStart(0, runs_again=False, after=None, lacks=None)),
            ((0,), (), NextStart(0, runs_again=True, after=None, lacks=None)),
            ((0,), (0,), NextStart(1, runs_again=False, after=0, lacks=None)),
            ((4, 5), (4,), NextStart(5, runs_again=True, after=4, lacks=None)),
            ((4, 5), (4, 5), NextStart(6, runs_again=False, after=5, lacks=None)),
            ((0, 1, 6), (0, 1, 6), NextStart(7, runs_again=False, after=6, lacks=5)),
            ((0, 1, 6), (0, 1), NextStart(6, runs_again=True, after=1, lacks=5)),
            ((4, 5), (4, 5, 6), NextStart(5, runs_again=True, after=4, lacks=None)),
        ],
    )
    def test_the_batch_that_spark_runs_next_is_told_as_spark_finds_it(self, offsets, commits, expected):
        """The newest entry runs again unless the newest commit is its own; a synchronous start wants the one before."""
        assert next_start(checkpoint(entries(*offsets), commits)) == expected

    def test_a_batch_that_would_be_skipped_by_number_alone_does_not_go_on(self):
        """Where ids alone are compared, a batch yet to be planned would be skipped whatever it gets."""
        facts = checkpoint(entries(4, 5), (4, 5))
        by_ids = published_to(7, guarantee="ids")
        assert verdict_on(facts, by_ids, next_start(facts)) is Verdict.CHANGED

    def test_an_accepted_batch_goes_on(self):
        """A batch that a person has let through is not refused any more."""
        facts = checkpoint(entries(4, 5), (4, 5))
        accepted = published_to(3, accepted=frozenset({6}))
        assert verdict_on(facts, accepted, next_start(facts)) is Verdict.ACCEPTED

    def test_the_run_will_ask_the_brokers(self):
        """Whoever looks before the start does not know the ids of topics, and that is no reason to refuse."""
        facts, published = checkpoint(entries(4, 5), (4, 5)), published_to(5)
        asked = replace(published, last=replace(published.last, topic_ids={"orders": "one"}))
        assert verdict_on(facts, asked, next_start(facts)) is Verdict.NEW


FILES = {"logOffset": 0}
RATE = {"offset": 10, "timestamp": 1000}
SINK = "public.events"


@pytest.fixture
def target(admin):
    """The table, and another table."""
    admin.execute(TABLE)
    admin.execute(TABLE.replace("events", "others"))


def begun(folder, *offsets, number=0):
    """A new query's checkpoint, whose batch is planned; its id."""
    query_id = str(uuid.uuid4())
    texts = {n: entry(n, *offsets) for n in range(number + 1)}
    write_checkpoint(folder, texts, range(number), query_id)
    return query_id


def commit(url, folder, query_id, *ids, table="events", name=None, number=0, **remedies):
    """Commit the planned batch as a run of this query does; its verdict."""
    checkpoint = Checkpoint(str(folder))
    planned = checkpoint.newest_offset_entry()
    batch = describe_batch(checkpoint, Origin(query_id, str(uuid.uuid4()), number, planned), name)
    work = work_into(None, destination(f"public.{table}"), rows(*ids))
    return commit_batch(CommitSettings(url, Remedies(**remedies), retry_timeout=5), batch, work).name


def publish(*arguments, **how):
    """As commit, but for a refusal: then its code."""
    try:
        return commit(*arguments, **how)
    except PgonceError as error:
        return error.code


def fed(url, folder, *offsets, **how):
    """A query that has published its batch 0."""
    query_id = begun(folder, *offsets)
    assert publish(url, folder, query_id, 1, 2, **how) == "NEW"
    return query_id


class TestVerdicts:
    def test_what_is_read_is_kept_until_a_batch_does_not_show_it(self, url, target, tmp_path, observer):
        """A query that reads files once may have read anything, so no other query is apart from it any more."""
        changing, topics = fed(url, tmp_path / "one", kafka(10)), {"t": {"0": 12}, "more": {"0": 5}}
        sources = "SELECT sources FROM pgonce.writers WHERE query_id = %s"
        write_checkpoint(tmp_path / "one", {1: entry(1, topics)}, (0,), changing)
        assert publish(url, tmp_path / "one", changing, 3, number=1) == "NEW"
        assert observer.execute(sources, [changing]).fetchone() == ({"kafka": {"more": [0], "t": [0]}},)
        assert publish(url, tmp_path / "two", begun(tmp_path / "two", {"third": {"0": 5}}), 4) == "NEW"
        write_checkpoint(tmp_path / "one", {2: entry(2, topics, FILES)}, (1,), changing)
        assert publish(url, tmp_path / "one", changing, 5, number=2) == "NEW"
        assert observer.execute(sources, [changing]).fetchone() == (None,)
        assert publish(url, tmp_path / "three", begun(tmp_path / "three", {"fourth": {"0": 5}}), 6) == "FOREIGN"

    def test_partitions_that_are_apart(self, url, target, tmp_path, observer):
        """A query of another topic needs no word; one of a topic that another query has ever read does."""
        first = fed(url, tmp_path / "one", kafka(10))
        assert publish(url, tmp_path / "two", begun(tmp_path / "two", {"more": {"0": 5}}), 3) == "NEW"
        sources = "SELECT sources FROM pgonce.writers WHERE query_id = %s"
        assert observer.execute(sources, [first]).fetchone() == ({"kafka": {"t": [0]}},)
        with psycopg.connect(url) as connection:
            # As after a person has accepted that the topic is gone.
            connection.execute('UPDATE pgonce.writers SET end_offsets = \'{"0": {"u": {"0": 1}}}\'')
        assert publish(url, tmp_path / "three", begun(tmp_path / "three", kafka(5)), 4) == "FOREIGN"
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.writers SET sources = NULL")
        assert publish(url, tmp_path / "four", begun(tmp_path / "four", {"new": {"0": 5}}), 4) == "FOREIGN"

    @pytest.mark.parametrize(
        ("offset", "way"),
        [
            (kafka(10), "`pgonce offsets OLD` prints, and set replaces=OLD"),
            (RATE, "write the checkpoint of query OLD again"),
            (FILES, "bring its checkpoint back to PLACE"),
        ],
        ids=["kafka", "rate", "files"],
    )
    def test_the_way_out_is_by_source(self, offset, way, url, target, tmp_path):
        """The error names the query, what can be done with its source, the reload, and the word."""
        old = fed(url, tmp_path / "one", offset)
        with pytest.raises(PgonceError, match="FOREIGN") as refused:
            commit(url, tmp_path / "two", begun(tmp_path / "two", offset), 9)
        text = str(refused.value)
        assert way.replace("OLD", old).replace("PLACE", str(tmp_path / "one")) in text
        assert f"`pgonce forget {old} --sink public.events --truncate --reason ... --yes`" in text
        assert "independent=true" in text

    def test_a_table_that_was_renamed_or_is_a_partition(self, url, target, tmp_path, admin):
        """A new query of it is refused, whatever the table is called now."""
        fed(url, tmp_path / "one", FILES)
        admin.execute(
            "ALTER TABLE public.events RENAME TO renamed;"
            "CREATE TABLE public.whole (LIKE public.renamed) PARTITION BY LIST (id);"
            "ALTER TABLE public.whole ATTACH PARTITION public.renamed DEFAULT"
        )
        for table in ("renamed", "whole"):
            again = begun(tmp_path / table, FILES)
            assert publish(url, tmp_path / table, again, 3, table=table) == "FOREIGN"

    def test_a_query_that_replaces_all_rows(self, url, target, tmp_path):
        """It would delete the rows of one that reads another topic, so its commit refuses that one."""
        begun(tmp_path / "one", {"a": {"0": 0}})
        checkpoint = Checkpoint(str(tmp_path / "one"))
        batch = describe_batch(checkpoint, Origin("one", "a run", 0, checkpoint.newest_offset_entry()), None)
        work = work_into(None, destination("public.events", "complete"), rows(1))
        assert commit_batch(CommitSettings(url), batch, work) is Verdict.NEW
        again = begun(tmp_path / "two", {"b": {"0": 0}})
        assert publish(url, tmp_path / "two", again, 3) == "FOREIGN"


class TestDoctor:
    """Of a query that the ledger does not know: its start says what doctor cannot."""

    def test_a_checkpoint_that_is_gone(self, url, target, tmp_path, pgonce, admin):
        """Doctor names the page; the start is refused, writes no row, and doctor then has its error."""
        place = tmp_path / "ckpt"
        fed(url, place, FILES, name="orders")
        shutil.rmtree(place)
        for _ in range(2):
            shown = pgonce("doctor", place)
            assert (shown.exit_code, "A lost checkpoint" in shown.stderr) == (ExitCode.UNREADABLE, True)
            place.mkdir(exist_ok=True)
        assert publish(url, place, begun(place, FILES), 1, 2) == "FOREIGN"
        assert admin.execute("SELECT count(*) FROM events").fetchone() == (2,)
        # The refused start has left a checkpoint of its own.
        shown = pgonce("doctor", place)
        assert shown.exit_code == ExitCode.OK
        assert "If another query feeds its table, its start is refused before a row is written." in shown.stdout

    def test_a_new_query_elsewhere(self, url, target, tmp_path, pgonce, admin):
        """Which table it will write to is not written down: doctor names no sink, and the start tells."""
        fed(url, tmp_path / "one", FILES)
        again = begun(tmp_path / "two", FILES)
        found = examine(str(tmp_path / "two"), url)
        assert (found.finding, found.next_batch_id, found.sinks) == (Finding.AGREE, 0, ())
        (remark,) = found.remarks
        assert remark.startswith(f"The ledger does not know query {again}.")
        assert publish(url, tmp_path / "two", again, 1) == "FOREIGN"
        assert admin.execute("SELECT count(*) FROM events").fetchone() == (2,)
        assert publish(url, tmp_path / "two", again, 1, table="others") == "NEW"

    def test_a_past_that_the_ledger_did_not_see(self, url, target, tmp_path, pgonce):
        """A later batch than 0 is UNKNOWN to every sink."""
        fed(url, tmp_path / "one", FILES)
        stranger = begun(tmp_path / "two", FILES, number=3)
        assert publish(url, tmp_path / "two", stranger, 1, number=3) == "UNKNOWN"
        answer = pgonce("doctor", tmp_path / "two", "--json")
        assert answer.exit_code == ExitCode.NEEDS_PERSON
        assert "adoptCheckpoint" in json.loads(answer.stdout)["advice"]


class TestForget:
    def test_a_forgotten_query_lets_a_new_one_in_and_is_refused_itself(self, url, target, tmp_path, pgonce, admin):
        """It shows what it means, waits for --yes, and lets a new query in; the old one is refused."""
        place = tmp_path / "ckpt"
        old = fed(url, place, FILES, name="orders")
        place.rename(tmp_path / "kept")
        again = begun(place, FILES)
        shown = pgonce("forget", "orders", "--reason", "full refresh")
        assert shown.exit_code == ExitCode.OK
        assert "--truncate removes all this" in shown.stdout
        assert "Give --yes" in shown.stdout
        assert publish(url, place, again, 1, 2, name="orders") == "FOREIGN"
        done = pgonce("forget", "orders", "--reason", "full refresh", "--yes", "--quiet-for", 0)
        assert done.exit_code == ExitCode.OK, done.stderr
        noted = admin.execute("SELECT kind, batch_id, reason FROM pgonce.interventions").fetchall()
        assert noted == [("forget", 0, "full refresh")]
        admin.execute("TRUNCATE public.events")
        assert publish(url, place, again, 1, 2, name="orders") == "NEW"
        assert admin.execute("SELECT id FROM events ORDER BY 1").fetchall() == [(1,), (2,)]
        write_checkpoint(tmp_path / "kept", {1: entry(1, {"logOffset": 1})}, (0,), old)
        assert publish(url, tmp_path / "kept", old, 3, number=1) == "FENCED"
        # The name means the new query now.
        assert json.loads(pgonce("status", "orders", "--json").stdout)[0]["query_id"] == again

    def test_a_query_that_runs(self, url, target, tmp_path, pgonce):
        """A query that has just been heard of is not forgotten."""
        old = fed(url, tmp_path / "ckpt", FILES)
        refused = pgonce("forget", old, "--reason", "why", "--yes", "--quiet-for", 3600)
        assert refused.exit_code == ExitCode.RUNNING
        assert pgonce("forget", old, "--reason", " ", "--yes").exit_code == ExitCode.USAGE
        again = begun(tmp_path / "two", FILES)
        assert publish(url, tmp_path / "two", again, 1) == "FOREIGN"

    def test_one_sink_of_two(self, url, target, tmp_path, pgonce):
        """--sink forgets one, and what is gone cannot be forgotten."""
        old = fed(url, tmp_path / "ckpt", FILES)
        assert publish(url, tmp_path / "ckpt", old, 1, table="others") == "NEW"
        done = pgonce("forget", old, "--sink", SINK, "--reason", "why", "--yes", "--quiet-for", 0)
        assert done.exit_code == ExitCode.OK, done.stderr
        assert "others" not in done.stdout
        again = pgonce("forget", old, "--sink", SINK, "--reason", "why")
        assert (again.exit_code, "[WRITER_GONE]" in again.stderr) == (ExitCode.NEEDS_PERSON, True)
        assert "public.others" in pgonce("forget", old, "--reason", "why").stdout

    def test_a_sink_that_was_retired(self, url, target, tmp_path, pgonce, admin):
        """It is forgotten if it is named, or if no sink is living, even while its query runs, and only once."""
        old = fed(url, tmp_path / "ckpt", FILES)
        assert publish(url, tmp_path / "ckpt", old, 1, table="others") == "NEW"
        retire_sink(old, url, sink=SINK)
        retired = "SELECT retired_at FROM pgonce.writers WHERE sink_name = %s"
        since = admin.execute(retired, [SINK]).fetchone()
        assert SINK not in pgonce("forget", old, "--reason", "why").stdout
        named = ("forget", old, "--sink", SINK, "--reason", "why", "--yes", "--quiet-for", 3600)
        assert pgonce(*named).exit_code == ExitCode.OK
        assert admin.execute(retired, [SINK]).fetchone() == since
        assert "[WRITER_GONE]" in pgonce(*named).stderr
        retire_sink(old, url, sink="public.others")
        assert pgonce("forget", old, "--reason", "why", "--yes").exit_code == ExitCode.OK
        noted = admin.execute("SELECT kind FROM pgonce.interventions ORDER BY intervention_id").fetchall()
        assert [kind for (kind,) in noted] == ["retire", "forget"] * 2
