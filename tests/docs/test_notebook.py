"""The cells of examples/first_rows.ipynb run in their order, and each row is there once."""

import json
import re

import pytest
from maven import ROOT


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.no_ledger
def test_the_cells_of_the_notebook_print_the_same_number_twice(start_reader, url, observer):
    """What a person would run cell by cell prints the same number twice, and leaves nothing."""
    notebook = json.loads((ROOT / "examples" / "first_rows.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    reader = start_reader(PGONCE_URL=url)
    (reader.directory / "cells.py").write_text("\n\n".join(cells))
    printed = re.search(r"^(\d+) (\d+)$", reader.type("python cells.py"), re.MULTILINE)
    assert printed
    assert printed[1] == printed[2] == "2000"
    left = "SELECT to_regclass('numbers'), to_regnamespace('pgonce'), to_regnamespace('pgonce_staging')"
    assert observer.execute(left).fetchone() == (None, None, None)
