"""The table of options, and what is derived from it: signatures, docstrings, the page."""

from __future__ import annotations

import inspect

import pytest
from support.options_page import PAGE, page

from pgonce import PostgresBatchWriter, start_real_time, transactional_batch
from pgonce.sink.options.definitions import (
    OPTIONS,
    FunctionOptions,
    RealTimeOptions,
    RouteOptions,
    RowOptions,
    TableOptions,
    WriterOptions,
)
from pgonce.sink.options.option import Way
from pgonce.sink.options.reading import options_of

ROWS = {"mode", "keys", "order_by"}


@pytest.mark.parametrize(
    ("arguments", "way", "others"),
    [
        (WriterOptions, Way.WRITER, {"url"}),
        (FunctionOptions, Way.FUNCTION, {"url"}),
        (RealTimeOptions, Way.REAL_TIME, {"url"}),
        (TableOptions, Way.TABLE, {"table"} | ROWS),
        (RowOptions, Way.TABLE, {"table"}),
        (RouteOptions, Way.ENTRY, set()),
    ],
)
def test_editors_see_the_arguments_that_a_way_takes(arguments, way, others):
    """But for those that its signature has by themselves, and those that are about several tables."""
    seen = set(arguments.__annotations__) - {"columns", "route", "tables", "unknown_routes"}
    taken = {option.argument for option in options_of(way)} - {"columns", "route", "tables", "unknown_routes"}
    assert seen == taken - others


def test_each_entry_is_sound():
    """What it needs and contradicts is there, and its own default is a value that it takes."""
    for name, option in OPTIONS.items():
        needed = {need.rpartition(":")[2] for need in option.needs}
        named = needed | {clash.partition("=")[0] for clash in option.clashes} | ({option.alike} - {""})
        assert (name, named - set(OPTIONS)) == (name, set())
        assert {need.rpartition(":")[0] for need in option.needs} <= {"", *option.words}, name
        assert (name, bool(option.ways), option.meaning[-1]) == (name, True, ".")
        assert option.least is not None or not option.kinds & {int, float}, name
        if option.default not in (None, ()):
            assert option.read(option.default) in (option.default, None), name


@pytest.mark.parametrize(("taker", "way"), [(PostgresBatchWriter, Way.WRITER), (transactional_batch, Way.FUNCTION)])
def test_a_docstring_names_each_argument(taker, way):
    """With the first sentence of what it means."""
    for option in options_of(way):
        assert f":param {option.argument}: " in taker.__doc__
    assert ":param retain_batches: How many batch records the ledger keeps; " in taker.__doc__


@pytest.mark.parametrize(
    ("taker", "way", "first"),
    [
        (PostgresBatchWriter, Way.WRITER, ["url", "table"]),
        (transactional_batch, Way.FUNCTION, ["url"]),
        (start_real_time, Way.REAL_TIME, ["spark", "kafka", "rows", "url", "real_time", "continuous", "table"]),
    ],
)
def test_a_signature_names_each_argument(taker, way, first):
    """Editors and help() show what `**options` takes, with the defaults."""
    parameters = inspect.signature(taker).parameters
    assert list(parameters)[: len(first)] == first
    assert set(parameters) - set(first) == {option.argument for option in options_of(way)} - set(first)
    assert parameters["retain_batches"].default == 1000
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def test_the_page_is_what_the_table_says():
    """``make docs`` writes it."""
    assert PAGE.read_text() == page()
