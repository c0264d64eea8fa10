"""The table of options, and what is derived from it: signatures, docstrings, the page."""

from __future__ import annotations

import pytest
from support.options_page import PAGE, page

from pgonce import PostgresBatchWriter, transactional_batch
from pgonce.sink.options.definitions import (
    OPTIONS,
    FunctionOptions,
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


@pytest.mark.parametrize("option", OPTIONS.values(), ids=list(OPTIONS))
def test_an_entry_is_sound(option):
    """What it needs and contradicts is there, and its own default is a value that it takes."""
    named = {*([option.needs] if option.needs else []), *(clash.partition("=")[0] for clash in option.clashes)}
    assert named <= set(OPTIONS)
    assert option.ways
    assert option.meaning.endswith(".")
    if option.default not in (None, ()):
        assert option.read(option.default) in (option.default, None)


@pytest.mark.parametrize(("taker", "way"), [(PostgresBatchWriter, Way.WRITER), (transactional_batch, Way.FUNCTION)])
def test_a_docstring_names_each_argument(taker, way):
    """With the first sentence of what it means."""
    for option in options_of(way):
        assert f":param {option.argument}: " in taker.__doc__
    assert ":param retain_batches: How many batch records the ledger keeps; at least 100." in taker.__doc__


def test_the_page_is_what_the_table_says():
    """``make docs`` writes it."""
    assert PAGE.read_text() == page()
