"""
The commands that say where queries stand: one line each, pages about one, exit codes for probes.

Covers: pgonce.cli.status, pgonce.cli.offsets, pgonce.cli.answers.tables, offsets_store.status.stored.
"""

from __future__ import annotations

import json
import re

import pytest
from support.ledger_history import KAFKA, OTHER, QUERY, RUN, hear, publish, replay, take_over

from pgonce.cli import status
from pgonce.cli.main import ExitCode
from pgonce.offsets_store.errors import ConnectError
from pgonce.offsets_store.ledger.failures import Failed, keep_failure
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.store import OffsetsStore

LONG = "a_query_whose_name_is_far_too_long_for_any_column_of_a_table"


def refuse(url) -> None:
    """A failure after the last batch."""
    failed = Failed(seen_by="commit", query_id=QUERY, sink_name="public.orders", run_id=RUN, batch_id=4)
    keep_failure(url, failed, "NOT_NULL_VIOLATION", "Postgres refused the batch.")


class TestList:
    def test_one_line_a_query(self, url, pgonce):
        """The line has name, sink, state, batch, age, rows a second and lag; what is unknown is a question mark."""
        publish(url, 3, KAFKA, rows=120)
        hear(url, {"0": {"t": {"0": 10, "1": 1_220}}})
        publish(url, 4, None, query_id=OTHER, query_name=None)
        header, first, second = pgonce("status").stdout.splitlines()
        assert header.split() == ["QUERY", "SINK", "STATE", "BATCH", "AGE", "ROWS/S", "LAG"]
        assert first.split()[:4] == ["orders", "public.orders", "running", "3"]
        assert first.split()[-1] == "1.2k"
        assert second.split()[:4] == [OTHER[:8], "public.orders", "running", "4"]
        assert second.split()[-1] == "?"

    def test_lines_fit_80_columns(self, url, pgonce, monkeypatch):
        """In a terminal of 80 columns, a long name ends in an ellipsis, and no number is cut."""
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("COLUMNS", "80")
        publish(url, 123_456_789, KAFKA, rows=98_765_432, query_name=LONG, sink_name=f"public.{LONG}")
        shown = pgonce("status").stdout.splitlines()
        assert len(shown) == 2
        assert all(len(line) <= 80 for line in shown)
        assert "123456789" in shown[1]
        assert LONG[:8] in shown[1]
        assert LONG not in shown[1]

    def test_what_needs_attention_follows(self, url, pgonce, admin):
        """After the lines it says what is wrong, since when, and what to type."""
        publish(url, 3, KAFKA)
        refuse(url)
        shown = pgonce("status").stdout
        assert "critical: orders into public.orders is refused since " in shown
        assert "NOT_NULL_VIOLATION at batch 4" in shown
        assert "pgonce explain NOT_NULL_VIOLATION" in shown

    def test_the_option_sort_chooses_the_order(self, url, pgonce):
        publish(url, 1, KAFKA, query_name="b", sink_name="public.x")
        publish(url, 9, KAFKA, query_id=OTHER, query_name="a", sink_name="public.y", rows=1000)
        names = lambda *options: [line.split()[0] for line in pgonce("status", *options).stdout.splitlines()[1:]]  # noqa: E731
        assert names() == ["a", "b"]
        assert names("--sort", "sink") == ["b", "a"]
        assert names("--sort", "rate") == ["a", "b"]
        assert pgonce("status", "--sort", "colour").exit_code == ExitCode.USAGE

    def test_old_queries_are_shown_if_asked_for(self, url, pgonce):
        """A replaced query is left out, unless --all is given; --wide has whole ids and what a state comes from."""
        publish(url, 7, KAFKA)
        take_over(url, publish(url, 0, KAFKA, query_id=OTHER), QUERY)
        assert QUERY not in pgonce("status", "--wide").stdout
        shown = pgonce("status", "--wide", "--all").stdout
        assert QUERY in shown
        assert f"query {OTHER} has taken its place" in shown
        assert len(json.loads(pgonce("status", "--json").stdout)) == 1
        assert len(json.loads(pgonce("status", "--json", "--all").stdout)) == 2

    def test_programs_read_all_that_is_stored_under_stable_keys(self, url, pgonce):
        replay(url, publish(url, 3, KAFKA))
        (one,) = json.loads(pgonce("status", "--json").stdout)
        assert set(one) == {
            "query_id", "query_name", "sink_name", "checkpoint_location", "run_id", "generation", "batch_id",
            "end_offsets", "guarantee", "replays", "disagreements", "replaces", "replaced_by", "retired_at",
            "created_at", "updated_at", "targets", "target_change", "lag", "lag_measured_at", "counts",
            "offsets_read_by", "transport", "state", "because", "state_since", "published_at", "rows",
            "rows_per_second", "usual_interval_seconds", "lag_seconds", "retention_used_percent", "failure_code",
            "failure_message", "failed_batch_id", "failures", "failing_since", "waits_for", "heard_at", "dead_letters",
            "last_lag", "severity", "help",
        }  # fmt: skip
        assert (one["batch_id"], one["end_offsets"], one["replays"], one["lag"]) == (3, KAFKA, 1, None)

    @pytest.mark.no_ledger
    def test_without_a_ledger_and_with_an_empty_one(self, url, pgonce):
        """A missing ledger is an error with its remedy, on stderr alone; an empty one is a sentence, or a list."""
        failed = pgonce("status")
        assert failed.exit_code == ExitCode.FAILED
        assert failed.stdout == ""
        assert failed.stderr.startswith("Error: [NO_LEDGER]")
        assert "pgonce init" in failed.stderr
        ensure_ledger(url)
        assert "empty" in pgonce("status").stdout
        assert json.loads(pgonce("status", "--json").stdout) == []

    def test_a_name_cannot_draw_a_line(self, url, pgonce):
        """A name with a line break, an escape or markup is shown as text in one line."""
        publish(url, 3, KAFKA, query_name="[red]x[/red]\n\x1b[2Jorders")
        lines = pgonce("status").stdout.splitlines()
        assert len(lines) == 2
        assert lines[1].startswith("[red]x[/red]\\n\\x1b[2Jorders")


class TestPage:
    def test_all_that_is_known_of_a_query(self, url, pgonce, admin):
        """The page has the state, the failure, offsets in Kafka's words, the newest batches and what to type."""
        counts = {"written": 7, "passed_over": 3, "not_found": 0}
        publish(url, 3, KAFKA, counts=counts, guarantee="ids")
        hear(url, {"0": {"t": {"0": 13, "1": 20}}})
        refuse(url)
        shown = pgonce("status", "orders").stdout
        for text in (
            "orders into public.orders", "refused, since", "Postgres refused the batch.", "1 time since",
            "7 written, 3 passed over", "/checkpoints/orders", "by ids (weaker)", QUERY, RUN,
            "TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG", "pgonce explain NOT_NULL_VIOLATION",
        ):  # fmt: skip
            assert text in shown
        assert ["t", "0", "10", "13", "3"] in [line.split() for line in shown.splitlines()]
        assert "not found" not in shown
        (one,) = json.loads(pgonce("status", "orders", "--json").stdout)
        assert (one["state"], one["counts"], one["positions"][0]["lag"]) == ("refused", counts, 3)

    @pytest.mark.parametrize("given", ["orders", QUERY, QUERY[:8], "public.bills", "bills"])
    def test_a_query_goes_by_many_names(self, url, pgonce, given):
        """Its name, its id, the beginning of its id, its sink, and its sink's table name it."""
        publish(url, 3, KAFKA, sink_name="public.bills")
        assert pgonce("status", given).stdout.startswith("orders into public.bills")
        assert pgonce("history", given).exit_code == ExitCode.OK

    def test_a_wrong_name_is_answered_with_the_nearest_one(self, url, pgonce):
        """A wrong name ends with its own exit code, the nearest one, and those that exist."""
        publish(url, 0, KAFKA)
        failed = pgonce("status", "oders")
        assert failed.exit_code == ExitCode.NOT_FOUND
        assert " orders?" in failed.stderr


class TestHealth:
    def test_a_probe_fails_while_something_critical_is_found(self, url, pgonce, admin):
        """Probes get 0 while nothing critical is found, and a code of their own otherwise."""
        publish(url, 3, KAFKA)
        assert pgonce("health").exit_code == ExitCode.OK
        assert "Nothing needs attention: 1 queries." in pgonce("health").stdout
        one = pgonce("health", "orders")
        assert one.exit_code == ExitCode.OK
        assert re.fullmatch(r"orders into public\.orders is running, batch 3 \d+s ago, lag \?\n", one.stdout)
        refuse(url)
        assert pgonce("health").exit_code == pgonce("health", "orders").exit_code == ExitCode.UNHEALTHY
        assert json.loads(pgonce("health", "--json").stdout)["healthy"] is False

    def test_a_query_that_is_too_old_or_too_far_behind_is_unhealthy(self, url, pgonce, admin):
        """A query may be too old or too far behind; an unknown lag is no small one, and an idle query may rest."""
        publish(url, 3, KAFKA)
        assert pgonce("health", "orders", "--max-age", "5m").exit_code == ExitCode.OK
        admin.execute("UPDATE pgonce.writers SET updated_at = now() - interval '6 min'")
        late = pgonce("health", "orders", "--max-age", "5m")
        assert late.exit_code == ExitCode.UNHEALTHY
        assert "its last batch is 6m old" in late.stdout
        assert "lag is unknown" in pgonce("health", "orders", "--max-lag", 5).stdout
        hear(url, {"0": {"t": {"0": 20, "1": 20}}})
        assert pgonce("health", "orders", "--max-lag", 5).exit_code == ExitCode.UNHEALTHY
        admin.execute(
            "INSERT INTO pgonce.heartbeats (query_id, run_id, listener, idle_since) VALUES (%s, %s, 'here', now())",
            [QUERY, RUN],
        )
        assert pgonce("health", "orders", "--max-age", "5m").exit_code == ExitCode.OK
        assert pgonce("health", "orders", "--max-age", "soon").exit_code == ExitCode.USAGE

    def test_bounds_of_a_query_with_a_retired_sink(self, url, pgonce, admin):
        """A sink that publishes no more is not late; if it is the only one that is asked for, it is."""
        publish(url, 3, KAFKA, sink_name="public.old")
        admin.execute("UPDATE pgonce.writers SET updated_at = now() - interval '9 days', retired_at = now()")
        publish(url, 3, KAFKA)
        hear(url, KAFKA, batch_id=3)
        bounds = ("health", "orders", "--max-age", "5m", "--max-lag", 5)
        assert pgonce(*bounds).exit_code == ExitCode.OK
        assert pgonce(*bounds, "--sink", "public.old").exit_code == ExitCode.UNHEALTHY

    def test_one_of_several_sinks(self, url, pgonce, admin):
        """What is wrong with another sink of the query is not asked for."""
        publish(url, 3, KAFKA)
        publish(url, 3, KAFKA, sink_name="public.other")
        refuse(url)
        assert pgonce("health", "orders", "--sink", "public.other").exit_code == ExitCode.OK
        assert pgonce("health", "orders", "--sink", "public.orders").exit_code == ExitCode.UNHEALTHY
        admin.execute("DELETE FROM pgonce.writers WHERE sink_name = 'public.orders'")
        assert "public.orders" not in pgonce("health", "orders", "--sink", "public.other").stdout

    def test_a_watch_outlives_a_restart_of_postgres(self, monkeypatch, capsys):
        """The error is shown in place of the states, and the next look is another try; a first look has to succeed."""
        looks = iter([None, ConnectError("CONNECT_FAILED", "Postgres restarts", "", ""), None, KeyboardInterrupt()])

        def show():
            answer = next(looks)
            if answer is not None:
                raise answer

        monkeypatch.setattr(status.time, "sleep", lambda _: None)
        status._again_and_again(show, 1)  # noqa: SLF001
        assert "Postgres restarts" in capsys.readouterr().out
        looks = iter([ConnectError("CONNECT_FAILED", "Postgres restarts", "", "")])
        with pytest.raises(ConnectError):
            status._again_and_again(show, 1)  # noqa: SLF001


class TestOffsets:
    def test_for_people_and_for_programs(self, url, pgonce):
        """One row a topic and partition; the JSON names the writer, and `offsets` prints what Spark takes."""
        publish(url, 3, KAFKA)
        rows = [line.split() for line in pgonce("status", "orders").stdout.splitlines()]
        assert [row for row in rows if row[:1] == ["t"]] == [["t", "0", "10", "?", "?"], ["t", "1", "20", "?", "?"]]
        (writer,) = json.loads(pgonce("status", QUERY, "--json").stdout)
        assert writer["end_offsets"] == KAFKA
        assert [(at["topic"], at["partition"], at["end_offset"]) for at in writer["positions"]] == [
            ("t", 0, 10),
            ("t", 1, 20),
        ]

        answer = pgonce("offsets", QUERY)
        assert (answer.exit_code, answer.stdout) == (0, '{"t": {"0": 10, "1": 20}}\n')
        assert answer.stdout.strip() == OffsetsStore(url).starting_offsets(QUERY)

    def test_a_source_that_is_not_kafka_shows_its_own_offset(self, url, pgonce):
        """A source that is not Kafka is shown by its own offset; several sources are named."""
        publish(url, 3, {"0": {"logOffset": 3}, "files": {"logOffset": 4}})
        rows = [line.split() for line in pgonce("status", "orders").stdout.splitlines()]
        assert ["SOURCE", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"] in rows
        assert ["files", '{"logOffset":', "4}", "?", "?"] in rows


class TestHistory:
    def test_for_people_and_programs(self, url, pgonce):
        """One line a batch, newest first, as many as asked for; --wide has offsets and whole ids."""
        for batch_id in range(3):
            publish(url, batch_id, {"0": {"logOffset": batch_id}}, rows=100 + batch_id)
        lines = pgonce("history", "orders").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["BATCH", "2", "1", "0"]
        assert "102" in lines[1]
        assert RUN not in lines[1]
        wide = pgonce("history", "orders", "--wide").stdout
        assert RUN in wide
        assert '{"logOffset": 2}' in wide
        found = json.loads(pgonce("history", "orders", "--limit", 2, "--json").stdout)
        assert [(batch["batch_id"], batch["rows"]) for batch in found] == [(2, 102), (1, 101)]
        assert set(found[0]) == {
            "query_id", "sink_name", "generation", "batch_id", "run_id", "start_offsets", "end_offsets", "rows",
            "dropped_rows", "transport", "replays", "committed_at", "counts", "tables",
            "commit_seconds", "batch_seconds",
        }  # fmt: skip

    def test_since_leaves_out_batches_that_are_older(self, url, pgonce, admin):
        """--since leaves out older batches, and takes what people write."""
        publish(url, 1, KAFKA)
        admin.execute("UPDATE pgonce.batches SET committed_at = now() - interval '2 hours'")
        publish(url, 2, KAFKA)

        def ids(since: str) -> list[int]:
            return [
                one["batch_id"] for one in json.loads(pgonce("history", "orders", "--since", since, "--json").stdout)
            ]

        assert ids("1h") == [2]
        assert ids("3h") == [2, 1]
        assert pgonce("history", "orders", "--since", "lately").exit_code == ExitCode.USAGE

    def test_shows_the_rows_of_each_table_and_what_became_of_them(self, url, pgonce):
        """A table stands there only if there are several; rows that were passed over are counted."""
        publish(url, 0, KAFKA, tables={"public.a": 3})
        publish(url, 1, KAFKA, tables={"public.a": 3, "public.b": 4}, counts={"written": 7, "unrouted": 2})
        shown = pgonce("history", QUERY).stdout
        assert "7 written, 2 unrouted, 3 into public.a, 4 into public.b" in shown
        assert shown.count("into public.a") == 1
        newest, oldest = json.loads(pgonce("history", QUERY, "--json").stdout)
        assert (newest["tables"], oldest["tables"]) == ({"public.a": 3, "public.b": 4}, {"public.a": 3})
