"""What somebody who comes from another writer writes first, and the hint that fits."""

from __future__ import annotations

import pytest

from pgonce import PostgresBatchWriter, transactional_batch
from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.foreach_batch.transaction import BatchTransaction
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
    "sink_name": "Did you mean sinkName",
    "tabel": "Did you mean table",
}


@pytest.mark.parametrize("name", HINTS)
def test_an_option_of_another_writer_or_of_the_source_gets_the_hint_that_fits(name):
    """Spark's jdbc writer and the sources have options of their own: the error says where they belong."""
    with pytest.raises(ConfigurationError, match=rf"\[UNKNOWN_OPTION\].*Help: .*{HINTS[name]}") as refused:
        parse_options({**LEAST, name: "hunter2"}, overwrite=False)
    assert "hunter2" not in str(refused.value)
    assert "The options are" not in str(refused.value)
    assert "`pgonce explain options`" in str(refused.value)


def test_where_nothing_comes_close_all_names_are_listed():
    """Options, and arguments."""
    with pytest.raises(ConfigurationError, match=r"Help: The options are url, .*table, "):
        parse_options({**LEAST, "zzzz": "1"}, overwrite=False)
    with pytest.raises(ConfigurationError, match=r"Help: The arguments are url, .*table, "):
        make_writer(zzzz=1)


def make_writer(**arguments):
    """A writer with the least that it needs."""
    return PostgresBatchWriter("host=db", table="events", **arguments)


def make_function(**arguments):
    """A decorated function with the least that it needs."""
    return transactional_batch("host=db", name="events", **arguments)


@pytest.mark.parametrize(
    ("make", "argument", "hint"),
    [
        (make_writer, "sink_nam", "Did you mean sink_name"),
        (make_writer, "sinkName", "Did you mean sink_name"),
        (make_writer, "orderBy", "Did you mean order_by"),
        (make_writer, "dbtable", "Set table"),
        (make_writer, "password", "~/.pgpass"),
        (make_writer, "receiver", r'format\("pgonce"\) alone'),
        (make_function, "retry_timout", "Did you mean retry_timeout"),
        (make_function, "password", "~/.pgpass"),
    ],
)
def test_a_misspelt_argument_gets_the_nearest_name(make, argument, hint):
    """The ways in through foreachBatch refuse unknown arguments as the sink refuses options."""
    with pytest.raises(ConfigurationError, match=rf"\[UNKNOWN_OPTION\].*Help: .*{hint}") as refused:
        make(**{argument: "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert "The arguments are" not in str(refused.value)


def test_a_list_that_became_text_is_refused_with_the_text_that_is_meant():
    """Spark turns a list that is given as an option into Python's text of it."""
    for option in ("keys", "positionColumns"):
        with pytest.raises(ConfigurationError, match=rf'\[BAD_OPTION\] {option}=.*Help: .*"id,day"'):
            parse_options({**LEAST, "mode": "upsert", option: str(["id", "day"])}, overwrite=False)
    with pytest.raises(ConfigurationError, match=r"\[BAD_OPTION\] keys="):
        make_writer(mode="upsert", keys="['id']")


def test_keys_may_be_one_text_wherever_they_are_given(monkeypatch):
    """A function's ``tx.upsert(..., keys="id,day")`` names two columns, not their letters."""
    destinations = []
    monkeypatch.setattr(BatchTransaction, "_write", lambda _, __, where: destinations.append(where))
    BatchTransaction(None, None).upsert(None, "events", "id, day")
    assert destinations[0].keys == ("id", "day")
