"""docs/python.md names what `import pgonce` offers: names, methods, arguments with their defaults, attributes."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest
from support.pages import DOCS, quoted_names, sections, table_rows

import pgonce
from pgonce.offsets_store import errors
from pgonce.offsets_store.offsets import CurrentOffset
from pgonce.offsets_store.recovery.recover import Recovery
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredJob, StoredWriter
from pgonce.sink.errors import SparkError

TEXT = (DOCS / "python.md").read_text()
PARTS = sections(TEXT, 2)
RESULTS = sections(PARTS["What it returns"], 3)
METHODS = {name: method for name, method in vars(OffsetsStore).items() if not name.startswith("_")}
CALLED = [*METHODS.values(), pgonce.OffsetsStore, pgonce.OffsetsListener, pgonce.OffsetsListener.close,
          pgonce.recover_checkpoint, pgonce.recover_and_start, pgonce.pipeline_sink_options]  # fmt: skip


def flat(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def call_of(function: object) -> str:
    """A function as the page writes it: its name, its arguments and their defaults, without their types."""
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
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


def test_every_method_has_its_section():
    """Each public method of OffsetsStore has a heading, and no other has one."""
    headings = sections(PARTS["OffsetsStore"], 3)
    assert {heading.strip("`").partition("(")[0] for heading in headings} == METHODS.keys()


def test_every_argument_is_explained():
    """What a method takes is named in its section, or in the table of arguments that several methods have."""
    shared = first_cells(PARTS["OffsetsStore"].partition("\n### ")[0])
    for heading, text in sections(PARTS["OffsetsStore"], 3).items():
        taken = inspect.signature(METHODS[heading.strip("`").partition("(")[0]]).parameters.keys() - {"self"}
        assert taken - shared <= quoted_names(text), heading
    for function in (pgonce.recover_checkpoint, pgonce.recover_and_start):
        arguments, _, _ = PARTS[function.__name__].partition("\nIt returns")
        assert first_cells(arguments) == set(inspect.signature(function).parameters)


@pytest.mark.parametrize("kind", [StoredWriter, StoredBatch, StoredJob, StoredLetter, PartitionLag])
def test_every_attribute_of_a_result_is_there(kind):
    """The table of each class has its attributes, and no others."""
    assert first_cells(RESULTS[kind.__name__]) == attributes_of(kind)


def test_every_attribute_of_a_recovery_is_there():
    """What recover_checkpoint returns is described, with all of its attributes."""
    assert first_cells(PARTS["recover_checkpoint"].partition("It returns")[2]) == attributes_of(Recovery)


def test_every_field_of_a_position_and_of_a_login_is_there():
    """They stand in sentences."""
    assert set(CurrentOffset._fields) <= quoted_names(RESULTS["StoredWriter"])
    login = quoted_names(PARTS["PostgresUrl and Login"])
    assert {field.name for field in dataclasses.fields(pgonce.Login)} <= login
    assert set(inspect.signature(pgonce.PostgresUrl).parameters) <= login


def test_every_error_has_what_the_page_says():
    """The four texts, and str() of them; the families that it names are there."""
    assert first_cells(PARTS["PgonceError"]) == set(inspect.signature(pgonce.PgonceError).parameters)
    error = pgonce.PgonceError("CODE", "What.", "Data.", "Remedy.")
    assert str(error) == "[CODE] What. Data. Help: Remedy."
    families = {name for name in quoted_names(flat(PARTS["PgonceError"])) if name.endswith("Error")}
    known = {name: getattr(errors, name, None) or SparkError for name in families}
    assert {name for name, family in known.items() if family.__name__ == name} == families
    assert all(issubclass(family, pgonce.PgonceError) for family in known.values())


def test_what_needs_no_spark_is_imported_without_it():
    """The names that the page lists can be imported where pyspark cannot."""
    names = ["OffsetsStore", "recover_checkpoint", "PgonceError", "PostgresUrl", "Login"]
    [sentence] = [part for part in flat(TEXT).split(". ") if "where Spark is not installed" in part]
    assert quoted_names(sentence) == {"import pgonce", *names}
    program = f"import sys; sys.modules['pyspark'] = None; from pgonce import {', '.join(names)}"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
