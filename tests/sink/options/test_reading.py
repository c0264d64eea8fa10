"""
Names in either spelling, and what somebody who comes from another writer writes first, with the hint that fits.

Covers: sink.options.option.
"""

from __future__ import annotations

import pytest

from pgonce import PostgresBatchWriter, transactional_batch
from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.foreach_batch.batch_transaction import BatchTransaction
from pgonce.sink.options.definitions import OPTIONS
from pgonce.sink.options.destination import destination
from pgonce.sink.options.option import Way
from pgonce.sink.options.reading import read
from pgonce.sink.options.sink_options import parse_options

LEAST = {"url": "host=db", "table": "events", "checkpointLocation": "/ckpt"}

HINTS = {
    "dbtable": "Set table",
    "user": "url",
    "password": "~/.pgpass",
    "driver": "Leave it out",
    "batchsize": "Leave it out",
    "numPartitions": "Leave it out",
    "subscribe": "spark.readStream",
    "kafka.bootstrap.servers": "spark.readStream",
    "kafka.sasl.jaas.config": "bootstrapServers",
    "startingOffsets": "spark.readStream",
    "maxFilesPerTrigger": "spark.readStream",
    "multiline": "spark.readStream",
    "processingTime": r"\.trigger\(",
    "checkpoint": "checkpointLocation",
    "tabel": "Did you mean table",
}


@pytest.mark.parametrize("name", HINTS)
def test_an_option_of_another_writer_or_of_the_source_gets_the_hint_that_fits(name):
    """Spark's jdbc writer and the sources have options of their own: the error says where they belong."""
    with pytest.raises(ConfigurationError, match=rf"\[UNKNOWN_OPTION\].*Help: .*{HINTS[name]}") as refused:
        parse_options({**LEAST, name: "hunter2"}, overwrite=False)
    assert "hunter2" not in str(refused.value)
    assert "The options are" not in str(refused.value)
    assert "`options`" in str(refused.value)


def make_function(**arguments):
    """A decorated function with the least that it needs."""
    return transactional_batch("host=db", name="events", **arguments)


@pytest.mark.parametrize(
    ("refuse", "said"),
    [
        (lambda: PostgresBatchWriter("host=db", table="t", receiver="auto"), r'receiver .*format\("pgonce"\)'),
        (lambda: PostgresBatchWriter("host=db", table="t", batch_key="k"), "batch_key .*batch jobs"),
        (lambda: make_function(table="t"), "transactional_batch"),
        (lambda: destination("events", table_name="t"), r"Help: .*\btable\b"),
        (lambda: destination("events", creat_table=True), "Help: .*create_table"),
    ],
)
def test_an_option_of_another_way_in_is_refused(refuse, said):
    """The error says to whom it belongs; tx.append and the like pass nothing over either."""
    with pytest.raises(ConfigurationError, match=rf"\[UNKNOWN_OPTION\].*{said}"):
        refuse()


def test_either_spelling_means_the_same_but_not_both():
    """Spark's users and Python's may write each other's names."""
    options = read({"order_by": "at", "KEYS": "id"}, Way.STREAM)
    assert options == read({"orderBy": "at", "keys": ["id"]}, Way.WRITER) == {"order_by": "at", "keys": ("id",)}
    with pytest.raises(ConfigurationError, match="CLASHING_OPTIONS.*orderBy"):
        read({"order_by": "at", "orderBy": "at"}, Way.WRITER)


@pytest.mark.parametrize(
    ("name", "as_option", "as_argument", "read_as"),
    [
        ("only_newer", " TRUE ", True, True),
        ("only_newer", "false", False, None),
        ("write_positions", "false", False, False),
        ("write_positions", "true", True, None),
        ("mode", "Upsert", "upsert", "upsert"),
        ("schema_evolution", "addcolumns", "addColumns", "addColumns"),
        ("independent", "true", True, True),
        ("dead_letters", "true", True, True),
        ("dead_letters", "false", False, None),
        ("tombstone_days", "3", 3, 3),
        ("lock_timeout", "3", 3, 3.0),
        ("lock_timeout", "0.5", 0.5, 0.5),
        ("keys", "id, day,", ["id", "day"], ("id", "day")),
        ("keys", "", (), None),
        ("order_by", "", None, None),
        ("change_feed", "", None, None),
        ("keep_where", "", "", ""),
        ("tables", "{}", "{}", "{}"),
        ("kafka_options", {}, {}, None),
        ("retry_timeout", "inf", float("inf"), float("inf")),
    ],
)
def test_a_value_means_the_same_as_a_string_and_as_python_has_it(name, as_option, as_argument, read_as):
    """Words in any case, numbers, names with commas or in a list; what is the default anyhow counts as not given."""
    assert OPTIONS[name].read(as_option) == read_as
    if as_argument is not None:
        assert OPTIONS[name].read(as_argument) == read_as


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("only_newer", "yes", "true, false"),
        ("only_newer", 1, "true, false"),
        ("independent", "byName", "true, false"),
        ("tombstone_days", "3.5", "whole number .1 to 36500"),
        ("tombstone_days", True, "whole number"),
        ("tombstone_days", 3.5, "whole number"),
        ("lock_timeout", "soon", "not a number"),
        ("lock_timeout", "nan", "0.001 to 1000000"),
        ("retry_timeout", 10**400, "at least 0"),
        ("retain_batches", "99", "100 to 2147483647.*last 100"),
        ("position_columns", "topic,partition", "exactly 3 names, and has 2.*in this order"),
        ("position_columns", ["topic", "", "offset"], "an entry that is not a name"),
        ("notify_channel", "\u00e9" * 32, "at most 63 bytes, and has 64"),
        ("keys", 5, "must be a list of names, not int"),
        # Spark turns a list that is given as an option into Python's text of it.
        ("keys", "['id', 'day']", 'Help: .*"id,day"'),
        ("position_columns", "('a', 'b', 'c')", "Help: .*commas"),
        # Spark's output modes, and what SQL and other writers call ours.
        ("mode", "update", r"upsert\?.* append, upsert, "),
        ("mode", "MERGE", r"upsert\?"),
        ("mode", "overwrite", r"complete\?"),
        ("mode", "apend", r"append\?"),
        ("keys", ["a\0"], "NUL"),
        ("order_by", ["at"], "string.* list"),
        ("order_by", "a\0", "NUL"),
        ("url", b"hunter2", "string.* bytes"),
        ("kafka_options", "hunter2", "mapping.* str"),
    ],
)
def test_a_value_of_another_kind_is_refused(name, value, said):
    """The error says what is expected, and never shows what may be a password."""
    with pytest.raises(ConfigurationError, match=rf"\[BAD_OPTION\].*{said}") as refused:
        OPTIONS[name].read(value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("arguments", [{"kafka_options": {"kafka.x": "y"}}, {"replaces": "q", "independent": True}])
def test_options_of_a_query_must_go_together(arguments):
    """Also those of a function, which has no table."""
    with pytest.raises(ConfigurationError, match="CLASHING_OPTIONS"):
        make_function(**arguments)


def test_keys_may_be_one_text_wherever_they_are_given(monkeypatch):
    """A function's ``tx.upsert(..., keys="id,day")`` names two columns, not their letters."""
    destinations = []
    monkeypatch.setattr(BatchTransaction, "_write", lambda _, __, place: destinations.append(place()))
    BatchTransaction(None, None, None, EVERY_ROOM).upsert(None, "events", "id, day")
    assert destinations[0].keys == ("id", "day")
