"""
What users of streams and batch jobs may ask for, and what is refused before a row moves.

Covers: offsets_store.commit.settings, offsets_store.status.read_stored.
"""

from __future__ import annotations

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.position_columns import RECORD_POSITIONS
from pgonce.sink.options.sink_options import parse_job_options, parse_options

LEAST = {"url": "host=db", "table": "events", "checkpointLocation": "/ckpt"}
REGISTRY = {"decode": "json", "schemaRegistryUrl": "http://registry", "mode": "upsert"}


def parse(overwrite=False, **options):
    """The options, with the least that every writer needs."""
    return parse_options(LEAST | options, overwrite=overwrite)


def test_the_least_that_a_user_must_say():
    """A table and a checkpoint location are enough; the url may be libpq's environment."""
    for overwrite, mode in ((False, "append"), (True, "complete")):
        options = parse_options({"table": "events", "checkpointlocation": "/ckpt"}, overwrite=overwrite)
        assert (options.destination.table, options.destination.mode, options.commit.url) == ("events", mode, "")
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
        notifyChannel="batches",
    )
    assert options.destination.keys == ("id", "day")
    assert options.destination.order_by == "at"
    assert options.destination.create_table
    assert options.commit.remedies == Remedies(adopt_checkpoint=7)
    assert (options.inline_bytes, options.offsets_from, options.sink_name) == (0, "listener", "orders")
    assert (options.commit.url, options.staging_url) == ("host=db", "host=inside")
    assert (options.commit.lock_timeout, options.commit.retry_timeout) == (5, 0)
    assert (options.commit.notify_channel, parse().commit.notify_channel) == ("batches", None)


def test_tasks_go_the_drivers_way_unless_they_are_told_another():
    """Without executorUrl they use url; an empty one means libpq's environment there, and a bad one is refused."""
    assert parse().staging_url == "host=db"
    assert parse(executorUrl="").staging_url == ""
    assert parse(executorUrl="host=inside", passwordFrom="a:b").staging_url.password_from == "a:b"
    for url in ("url", "executorUrl"):
        assert "secret" not in repr(parse(**{url: "password=secret"}))
    with pytest.raises(ConfigurationError, match="BAD_URL"):
        parse(executorUrl="jdbc:postgresql://db/shop")


@pytest.mark.parametrize(
    ("given", "host", "inline_bytes"),
    [
        ({}, "auto", 8 << 20),
        ({"receiver": "OFF"}, None, 8 << 20),
        ({"receiver": " "}, "auto", 8 << 20),
        ({"receiver": "Auto"}, "auto", 8 << 20),
        ({"receiver": "10.0.0.7"}, "10.0.0.7", 8 << 20),
        ({"receiver": "auto", "inlineBytes": "5"}, "auto", 5),
    ],
)
def test_where_a_receiver_is_called(given, host, inline_bytes):
    """A task calls it with a megabyte of rows, or with less if less travels in commit messages."""
    options = parse(**given)
    assert (options.receiver, options.inline_bytes) == (host, inline_bytes)
    assert options.call_bytes == min(inline_bytes, 1 << 20)


def test_an_environment_may_do_without_receivers(monkeypatch):
    """Whatever a query says; another word than off is a mistake, and no answer."""
    monkeypatch.setenv("PGONCE_RECEIVER", "off")
    for receiver in ("auto", "10.0.0.7", "off"):
        assert (parse(receiver=receiver).receiver, parse(receiver=receiver).inline_bytes) == (None, 8 << 20)
    monkeypatch.setenv("PGONCE_RECEIVER", "")
    assert parse(receiver="auto").receiver == "auto"
    monkeypatch.setenv("PGONCE_RECEIVER", "no")
    with pytest.raises(ConfigurationError, match=r"PGONCE_RECEIVER.*'no'.* off\b"):
        parse()


@pytest.mark.parametrize("key", ["path", "queryName", "outputMode", "asyncProgressTrackingEnabled", "spark.x"])
def test_sparks_own_option_keys_pass(key):
    """What Spark itself reads from a writer's options is no error."""
    parse(**{key: "false"})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"table": " "}, "OPTION_MISSING"),
        ({"mode": "upsert", "createTable": "true"}, "NO_KEYS"),
        ({"keys": "id"}, "CLASHING_OPTIONS"),
        ({"orderBy": "at"}, "CLASHING_OPTIONS"),
        ({"mode": "upsert", "keys": "id,id"}, "BAD_OPTION"),
        ({"mode": "complete"}, "CLASHING_OPTIONS"),
        ({"overwrite": True, "mode": "upsert", "keys": "id"}, "CLASHING_OPTIONS"),
        ({"inlineBytes": "8MB"}, "BAD_OPTION"),
        ({"adoptCheckpoint": "1", "replaces": "q0"}, "CLASHING_OPTIONS"),
        ({"adoptCheckpoint": "0", "independent": "true"}, "CLASHING_OPTIONS"),
        ({"lockTimeout": "0"}, "BAD_OPTION"),
        ({"lockTimeout": "3000000"}, "BAD_OPTION"),
        ({"bootstrapServers": "a:1", "kafka.sasl.mechanism": "GSSAPI"}, "BAD_OPTION"),
        ({"checkpointLocation": ""}, "OPTION_MISSING"),
        ({"asyncProgressTrackingEnabled": "true"}, "ASYNC_PROGRESS"),
        ({"asyncprogresstrackingenabled": "TRUE", "decode": "json"}, "ASYNC_PROGRESS"),
        ({"asyncProgressTrackingEnabled": "true", "positionColumns": "a,b,c"}, "ASYNC_PROGRESS"),
        (
            {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "0"},
            "ASYNC_PROGRESS",
        ),
        ({"writePositions": "false"}, "CLASHING_OPTIONS"),
        ({"positionColumns": "a,b,c", "offsetsFrom": "listener"}, "CLASHING_OPTIONS"),
        ({"bootstrapServers": "a:1", "offsetsFrom": "listener"}, "CLASHING_OPTIONS"),
        ({"batchKey": "2026-11-20"}, "UNKNOWN_OPTION"),
        ({"tables": "{}"}, "CLASHING_OPTIONS"),
        ({"unknownRoutes": "drop"}, "CLASHING_OPTIONS"),
        ({"decode": "xml"}, "BAD_OPTION"),
        ({"decode": "json", "positionColumns": "a,b,c"}, "CLASHING_OPTIONS"),
        ({"decode": "json", "offsetsFrom": "listener"}, "CLASHING_OPTIONS"),
        ({"decode": "json", "createTable": "true"}, "CLASHING_OPTIONS"),
        ({"decode": "json", "columns": "id,name"}, "BAD_OPTION"),
        ({"decode": "json", "columns": '{"id": 1}'}, "BAD_OPTION"),
        ({"decode": "json", "columns": '{"id": "a", "id": "b"}'}, "BAD_OPTION"),
        ({"decode": "json", "kafkaColumns": "at"}, "BAD_OPTION"),
        ({"decode": "json", "columns": '{"a": "b"}', "kafkaColumns": '{"a": "topic"}'}, "BAD_OPTION"),
        ({"decode": "json", "columns": '{"a": "b..c"}'}, "BAD_OPTION"),
        ({"decode": "json", "schemaEvolution": "addColumns"}, "CLASHING_OPTIONS"),
        ({"columns": '{"id": "a.b"}'}, "CLASHING_OPTIONS"),
        ({"columns": "id"}, "CLASHING_OPTIONS"),
        ({"decodeKey": "text"}, "CLASHING_OPTIONS"),
        ({"decode": "avro"}, "CLASHING_OPTIONS"),
        ({"decode": "protobuf", "schemaRegistryUrl": ""}, "CLASHING_OPTIONS"),
        # JSON, and what a registry knows, would be read as each other.
        ({**REGISTRY, "decodeKey": "avro"}, "CLASHING_OPTIONS"),
        ({**REGISTRY, "mode": "apply", "changeFeed": "debezium"}, "CLASHING_OPTIONS"),
        ({"nullValues": "ignore"}, "CLASHING_OPTIONS"),
    ],
)
def test_bad_options_are_refused(options, code):
    """Each bad value or pair of options has its code, and the text says that nothing was written."""
    with pytest.raises(ConfigurationError, match=f"\\[{code}\\].*Nothing was written"):
        parse(**options)


def test_records_that_are_decoded_carry_their_positions():
    """So rows that are stored are dropped, and rows of a key have an order."""
    found = parse(decode="json", mode="upsert", keys="id")
    assert found.positions == RECORD_POSITIONS
    assert not found.positions.written
    assert found.destination.order_by == "pgonce_offset"
    assert parse(decode="json", mode="upsert", keys="id", orderBy="at").destination.order_by == "at"
    decoding = parse(decode="json", mode="apply", keys="id", columns='{"a": "b.c"}').destination.decoding
    assert (decoding.key, decoding.paths) == ("text", (("a", "b.c"),))


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


JOB = {"url": "", "table": "events", "batchKey": "2026-11-20"}


def test_a_job_is_parsed_as_a_stream_is():
    """Keys may come in any case, as Spark hands them over in lower case."""
    more = {"MODE": "upsert", "keys": "id,day", "inlinebytes": "0", "batchhash": "true", "sinkName": "s"}
    options = parse_job_options({**JOB, **more, "path": "x", "spark.x": "y", "_x": "z"}, overwrite=False)
    assert (options.batch_key, options.batch_hash, options.inline_bytes) == ("2026-11-20", True, 0)
    assert (options.destination.mode, options.destination.keys) == ("upsert", ("id", "day"))
    assert options.sink_label == "s"


def test_sparks_save_mode_chooses_between_append_and_complete():
    """Spark's overwrite is our complete."""
    assert parse_job_options(JOB, overwrite=False).destination.mode == "append"
    assert parse_job_options(JOB, overwrite=True).destination.mode == "complete"
    assert parse_job_options({**JOB, "mode": "complete"}, overwrite=True).destination.mode == "complete"


@pytest.mark.parametrize(
    ("more", "overwrite", "words"),
    [
        ({"batchKey": None}, False, "OPTION_MISSING.*batchKey"),
        ({"batchKey": ""}, False, "OPTION_MISSING.*batchKey"),
        ({"batchKey": "  "}, False, "OPTION_MISSING.*batchKey"),
        ({"batchKey": "k" * 1001}, False, "BAD_OPTION.*batchKey.*1000 bytes"),
        ({"batchKey": "k\0"}, False, "BAD_OPTION.*batchKey"),
        ({"mode": "upsert", "keys": "id"}, True, r'CLASHING_OPTIONS.*\.mode\("overwrite"\)'),
        ({"mode": "complete"}, False, r'CLASHING_OPTIONS.*\.mode\("overwrite"\)'),
        ({"receiver": "auto"}, False, "UNKNOWN_OPTION.*receiver .*streams"),
        ({"deadLetters": "true"}, False, "UNKNOWN_OPTION.*deadLetters"),
        ({"batchkeys": "a"}, False, "UNKNOWN_OPTION.*batchKey"),
        ({"kafka.security.protocol": "SSL"}, False, "UNKNOWN_OPTION"),
        ({"route": "kind", "tables": "{}"}, False, "UNKNOWN_OPTION"),
        ({"dbtable": "a"}, False, r"UNKNOWN_OPTION.*Help: .*\btable\b"),
        ({"table": " "}, False, "OPTION_MISSING"),
        ({"batchHash": "yes"}, False, "BAD_OPTION.*batchHash"),
        ({"retryTimeout": "-1"}, False, "BAD_OPTION.*retryTimeout"),
    ],
)
def test_what_makes_no_sense_in_a_job_is_refused(more, overwrite, words):
    """The error names the option, and what to do with it."""
    with pytest.raises(ConfigurationError, match=words):
        parse_job_options({**JOB, **more}, overwrite=overwrite)
