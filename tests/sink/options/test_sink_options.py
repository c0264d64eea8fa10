"""
What users may ask for, and what is refused before a row moves.

Covers: offsets_store.commit.settings, sink.options.values, sink.options.destination.
"""

from __future__ import annotations

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.sink_options import OPTIONS, parse_options

LEAST = {"url": "host=db", "table": "events", "checkpointLocation": "/ckpt"}


def parse(overwrite=False, **options):
    """The options, with the least that every writer needs."""
    return parse_options(LEAST | options, overwrite=overwrite)


def test_the_least_that_a_user_must_say():
    """A table and a checkpoint location are enough; the url may be libpq's environment."""
    options = parse_options({"table": "events", "checkpointlocation": "/ckpt"}, overwrite=False)
    assert (options.destination.table, options.destination.mode, options.commit.url) == ("events", "append", "")
    assert options.commit.retain_batches == 1000


def test_every_option_is_understood():
    """Each documented option reaches the settings that it names."""
    options = parse(
        mode="upsert",
        keys="id, day",
        orderBy="at",
        sinkName="orders",
        inlineBytes="0",
        executorUrl="host=inside",
        createTable="true",
        retainBatches="100",
        offsetsFrom="listener",
        adoptCheckpoint="7",
        lockTimeout="5",
        retryTimeout="0",
    )
    assert options.destination.keys == ("id", "day")
    assert options.destination.order_by == "at"
    assert options.destination.create_table
    assert options.commit.remedies == Remedies(adopt_checkpoint=7)
    assert (options.inline_bytes, options.offsets_from, options.sink_name) == (0, "listener", "orders")
    assert (options.commit.url, options.staging_url) == ("host=db", "host=inside")
    assert (options.commit.lock_timeout, options.commit.retry_timeout) == (5, 0)


def test_tasks_go_the_drivers_way_unless_they_are_told_another():
    """Without executorUrl they use url; an empty one means libpq's environment there, and a bad one is refused."""
    assert parse().staging_url == "host=db"
    assert parse(executorUrl="").staging_url == ""
    assert parse(executorUrl="host=inside", passwordFrom="a:b").staging_url.password_from == "a:b"
    assert "secret" not in repr(parse(executorUrl="password=secret"))
    with pytest.raises(ConfigurationError, match="BAD_URL"):
        parse(executorUrl="jdbc:postgresql://db/shop")


def test_the_words_about_a_querys_past_are_understood():
    """What the user affirms of a query that the ledger does not know reaches the verdict."""
    assert parse(replaces="q0").commit.remedies == Remedies(replaces="q0")
    assert parse(independent="true").commit.remedies == Remedies(independent=True)
    assert parse(independent="byName").commit.remedies == Remedies(independent_by_name=True)


@pytest.mark.parametrize(
    ("given", "host", "inline_bytes"),
    [
        ({}, None, 8 << 20),
        ({"receiver": "OFF"}, None, 8 << 20),
        ({"receiver": "Auto"}, "auto", 1 << 20),
        ({"receiver": "10.0.0.7"}, "10.0.0.7", 1 << 20),
        ({"receiver": "auto", "inlineBytes": "5"}, "auto", 5),
    ],
)
def test_a_receiver_is_had_by_asking_and_takes_more_of_the_rows(given, host, inline_bytes):
    """Without the option there is none; with it, less travels in commit messages, unless the user says how much."""
    options = parse(**given)
    assert (options.receiver, options.inline_bytes) == (host, inline_bytes)


def test_option_names_are_case_insensitive_as_spark_hands_them_over():
    """Spark lower-cases keys, so keys of any case mean the same."""
    assert parse(inlinebytes="5").inline_bytes == parse(INLINEBYTES="5").inline_bytes == 5


@pytest.mark.parametrize("key", ["path", "queryName", "outputMode", "asyncProgressTrackingEnabled", "spark.x"])
def test_sparks_own_option_keys_pass(key):
    """What Spark itself reads from a writer's options is no error."""
    parse(**{key: "false"})


@pytest.mark.parametrize(("typo", "right"), [("tabel", "table"), ("inlineByte", "inlineBytes"), ("key", "keys")])
def test_an_unknown_option_is_refused_with_the_nearest_right_name(typo, right):
    """A misspelt option never works by accident."""
    with pytest.raises(ConfigurationError, match=f"UNKNOWN_OPTION.*Did you mean {right}\\?"):
        parse(**{typo: "x"})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"receiver": "auto", "positionColumns": "topic,partition,offset"}, "CLASHING_OPTIONS"),
        ({"table": " "}, "NO_TABLE"),
        ({"mode": "apend"}, "BAD_OPTION"),
        ({"mode": "upsert", "createTable": "true"}, "NO_KEYS"),
        ({"keys": "id"}, "CLASHING_OPTIONS"),
        ({"orderBy": "at"}, "CLASHING_OPTIONS"),
        ({"mode": "upsert", "keys": "id,id"}, "BAD_OPTION"),
        ({"mode": "complete"}, "CLASHING_OPTIONS"),
        ({"inlineBytes": "-1"}, "BAD_OPTION"),
        ({"inlineBytes": "8MB"}, "BAD_OPTION"),
        ({"createTable": "yes"}, "BAD_OPTION"),
        ({"retainBatches": "99"}, "BAD_OPTION"),
        ({"offsetsFrom": "kafka"}, "BAD_OPTION"),
        ({"adoptCheckpoint": "last"}, "BAD_OPTION"),
        ({"adoptCheckpoint": "1", "replaces": "q0"}, "CLASHING_OPTIONS"),
        ({"replaces": "q0", "independent": "true"}, "CLASHING_OPTIONS"),
        ({"lockTimeout": "0"}, "BAD_OPTION"),
        ({"lockTimeout": "3000000"}, "BAD_OPTION"),
        ({"notifyChannel": "c" * 64}, "BAD_OPTION"),
        ({"bootstrapServers": "a:1", "kafka.sasl.mechanism": "GSSAPI"}, "BAD_OPTION"),
        ({"checkpointLocation": ""}, "NO_CHECKPOINT_LOCATION"),
        ({"asyncProgressTrackingEnabled": "true"}, "ASYNC_PROGRESS"),
    ],
)
def test_bad_options_are_refused(options, code):
    """Each bad value or pair of options has its code, and the text says that nothing was written."""
    with pytest.raises(ConfigurationError, match=f"\\[{code}\\].*Nothing was written"):
        parse(**options)


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="s3cret";'


def test_brokers_and_how_to_log_in_to_them():
    """Kafka's settings as Spark has them go with bootstrapServers, and no password is ever shown."""
    found = parse(bootstrapServers="a:1", **{"kafka.security.protocol": "SASL_SSL", "kafka.sasl.jaas.config": JAAS})
    assert found.brokers.client["sasl.password"] == "s3cret"
    assert "s3cret" not in repr(found)
    assert parse().brokers is None
    with pytest.raises(ConfigurationError, match="JKS") as refused:
        parse(bootstrapServers="a:1", **{"kafka.ssl.truststore.location": "/s3cret.jks"})
    assert "s3cret" not in str(refused.value)


def test_the_channel():
    """Batches are told on the channel that is given, and on none by default."""
    assert parse().commit.notify_channel is None
    assert parse(notifyChannel="batches").commit.notify_channel == "batches"


def test_complete_output_mode_is_complete_and_goes_with_no_other_mode():
    """Spark says complete; a mode that says otherwise clashes."""
    assert parse(overwrite=True).destination.mode == "complete"
    with pytest.raises(ConfigurationError, match="CLASHING_OPTIONS"):
        parse(overwrite=True, mode="upsert", keys="id")


def test_keys_go_with_append_where_the_table_is_created():
    """With createTable the keys become the primary key."""
    assert parse(keys="id", createTable="true").destination.keys == ("id",)


def test_settings_never_show_the_url():
    """A connection string may hold a password, and settings end up in logs."""
    assert "s3cret" not in repr(parse(url="postgresql://u:s3cret@db/x"))


def test_every_option_is_documented():
    """docs/options.md has an entry for each option."""
    from pathlib import Path

    text = (Path(__file__).parents[3] / "docs" / "options.md").read_text()
    assert [name for name in OPTIONS if f"`{name}`" not in text] == []
