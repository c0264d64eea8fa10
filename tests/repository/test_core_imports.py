"""What leads out of the core is found wherever it stands."""

from __future__ import annotations

import grimp
from release.core_imports import leading_out

ROOMS = {
    "the core": ["sink/writing", "offsets_store/ledger"],
    "by key": ["sink/writing/by_key"],
    "page": ["pgonce/serve"],
    "package": ["pgonce/__init__.py"],
}
PAIRS = [
    ("pgonce.sink.writing.rows", "pgonce.offsets_store.ledger.lock"),
    ("pgonce.sink.writing.rows", "pgonce.sink.writing.by_key.keys"),
    ("pgonce.offsets_store.ledger", "pgonce.serve.page"),
    ("pgonce.offsets_store.ledger.lock", "pgonce"),
    ("pgonce.serve.page", "pgonce.sink.writing.by_key"),
]


def test_an_import_out_of_the_core_is_found():
    """A room may import what it wants; the core is also a folder's own module."""
    graph = grimp.ImportGraph()
    for importer, imported in PAIRS:
        graph.add_import(importer=importer, imported=imported)
    assert [said.partition(" of ")[0] for said in leading_out(graph, ROOMS)] == [
        "pgonce.offsets_store.ledger is the core's, and imports pgonce.serve.page",
        "pgonce.offsets_store.ledger.lock is the core's, and imports pgonce",
        "pgonce.sink.writing.rows is the core's, and imports pgonce.sink.writing.by_key.keys",
    ]
