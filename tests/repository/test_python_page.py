"""docs/python.md names what `import pgonce` offers: names, methods, arguments with their defaults, attributes."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from support.pages import DOCS, quoted_names, sections, table_rows

import pgonce
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.offsets_store.status.failures import StoredFailure
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredWriter
from pgonce.recovery.recover import Recovery
from pgonce.sink.options.definitions import OPTIONS

TEXT = (DOCS / "python.md").read_text()
PARTS = sections(TEXT, 2)
RESULTS = sections(PARTS["What it returns"], 3)
METHODS = {name: method for name, method in vars(OffsetsStore).items() if not name.startswith("_")}
CALLED = [*METHODS.values(), pgonce.OffsetsStore, pgonce.OffsetsListener, pgonce.OffsetsListener.close,
          pgonce.watch, pgonce.recover_checkpoint, pgonce.recover_and_start, pgonce.start_real_time]  # fmt: skip


def flat(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def call_of(function: object) -> str:
    """A function as the page writes it: its name, its arguments and their defaults, without their types."""
    signature = inspect.signature(function)
    # Those from the table of options have no types, and stand on a page of their own.
    written = [
        one for one in signature.parameters.values() if one.name not in OPTIONS or one.annotation is not one.empty
    ]
    if len(written) < len(signature.parameters):
        written.append(inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD))
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in written]
    without_self = [parameter for parameter in plain if parameter.name != "self"]
    return f"{function.__name__}{signature.replace(parameters=without_self, return_annotation=inspect.Signature.empty)}"


def attributes_of(kind: type) -> set[str]:
    """The public attributes of a result, properties among them."""
    properties = {name for name, value in vars(kind).items() if isinstance(value, property)}
    return {field.name for field in dataclasses.fields(kind)} | properties


def first_cells(text: str) -> set[str]:
    """What stands in backticks in the first column of a section's table."""
    return quoted_names(" ".join(row[0] for row in table_rows(text)))


def test_every_public_name_stands_in_the_first_table():
    """All that can be imported is there, and nothing else."""
    assert first_cells(TEXT.partition("\n## ")[0]) == set(pgonce.__all__)


@pytest.mark.parametrize("function", CALLED, ids=lambda function: function.__qualname__)
def test_every_call_is_written_as_it_is(function):
    """Each method and function stands there with all of its arguments and their defaults."""
    assert f"`{call_of(function)}`" in flat(TEXT).replace('""', "''")


@pytest.mark.parametrize("kind", [StoredWriter, StoredBatch, StoredLetter, StoredFailure, PartitionLag])
def test_every_attribute_of_a_result_is_there(kind):
    """The table of each class has its attributes, and no others."""
    assert first_cells(RESULTS[kind.__name__]) == attributes_of(kind)


def test_every_attribute_of_a_recovery_is_there():
    """What recover_checkpoint returns is described, with all of its attributes."""
    assert first_cells(PARTS["recover_checkpoint"].partition("It returns")[2]) == attributes_of(Recovery)
