"""What a batch writer and a transactional function have in common is said, checked and understood in the same way."""

from __future__ import annotations

import inspect

import pytest

from pgonce import PostgresBatchWriter, transactional_batch
from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.foreach_batch.batch_settings import batch_settings
from pgonce.sink.options.position_columns import PositionColumns

ARGUMENTS = {
    "pin_table": False,
    "positions": (),
    "password_from": None,
    "bootstrap_servers": None,
    "kafka_options": None,
    "notify_channel": None,
    "checkpoint_location": None,
    "retain_batches": 1000,
    "adopt_checkpoint": None,
    "replaces": None,
    "independent": False,
    "lock_timeout": 30.0,
    "retry_timeout": 120.0,
}


def common():
    """The arguments that both ways in have, with what each takes for granted."""
    writer, function = (inspect.signature(way).parameters for way in (PostgresBatchWriter, transactional_batch))
    return {name: (writer[name].default, function[name].default) for name in writer if name in function}


def test_both_ways_in_take_the_same_arguments():
    """An argument means the same, and has the same default, whichever way a batch is written."""
    assert all(default == other for default, other in common().values())
    settings = inspect.signature(batch_settings).parameters
    assert set(settings) - {"positions", "write_positions", "start_over"} == set(common()) - {"position_columns"}


def test_columns_are_found_however_they_are_written():
    """A list, or a text with commas; none at all means that rows do not say where they come from."""
    columns = PositionColumns("topic", "partition", "offset", written=False)
    for given in (["topic", "partition", "offset"], "topic, partition, offset"):
        settings = batch_settings("", **{**ARGUMENTS, "positions": given}, write_positions=False)
        assert settings.positions == columns
    assert batch_settings("", **ARGUMENTS).positions is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"positions": ["topic"]},
        {"retain_batches": 1},
        {"lock_timeout": 0},
        {"lock_timeout": float("nan")},
        {"lock_timeout": float("inf")},
        {"adopt_checkpoint": 3, "independent": True},
        {"replaces": "\x00"},
    ],
)
def test_what_cannot_work_is_refused_at_once(wrong):
    """Before a query has started."""
    with pytest.raises(ConfigurationError):
        batch_settings("", **{**ARGUMENTS, **wrong})
