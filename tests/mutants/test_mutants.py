"""Every mutant can still be applied: its function is there, and has the text that it changes."""

from __future__ import annotations

import pytest
from mutants.mutant import ROOT, Mutant, all_mutants


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_the_function_that_it_names(mutant: Mutant) -> None:
    """Where the code has changed since, the mutant has to change with it, or it would break nothing."""
    source = (ROOT / mutant.file).read_text()
    assert mutant.applied_to(source) != source
