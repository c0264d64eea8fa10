"""docs/tables.md has the ledger's tables and columns, and the queries of docs/watching.md find what they are for."""

from __future__ import annotations

import pytest
from support.ledger_history import publish
from support.pages import DOCS, quoted_names, sections, sql_blocks, table_rows
from support.tables_page import ledger_columns, of_pgonce

from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.states import ENDED, STATES

RELATIONS = """
SELECT c.relname, a.attname
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = 'pgonce'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f') AND a.attnum > 0
    AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""
OUR_TABLES = {"tombstones", "tombstone_sets", "home"}


@pytest.fixture
def ledger(admin, url):
    """A superuser's connection to a database with a ledger."""
    ensure_ledger(url)
    return admin


def of_watching() -> list[str]:
    """The queries of docs/watching.md: all states, all findings, and the writers that do not move."""
    return sql_blocks(sections((DOCS / "watching.md").read_text(), 2)["In SQL"])


def test_the_page_has_what_the_ledger_has(ledger):
    """Each table, view and column for users stands on the page; those of pgonce itself are only named."""
    ours = of_pgonce()
    there: dict[str, list[str]] = {}
    columns = set()
    for relation, column in ledger.execute(RELATIONS):
        columns.add(column)
        if relation not in ours and column not in ours:
            there.setdefault(relation, []).append(column)
    assert {name: sorted(columns) for name, columns in ledger_columns().items()} == {
        name: sorted(columns) for name, columns in there.items()
    }
    [[for_users, _]] = table_rows(sections((DOCS / "ledger.md").read_text(), 2)["Reading it in SQL"])
    assert quoted_names(for_users) - {"wait_for", "follow_exchange"} == set(there)
    assert ours - columns == OUR_TABLES


def test_each_state_has_its_row_in_watching():
    """What a query can be, but for those that are over."""
    rows = table_rows(sections((DOCS / "watching.md").read_text(), 2)["States"])
    assert {name for row in rows for name in quoted_names(row[0])} == set(STATES) - set(ENDED)


def test_the_queries_of_watching_run_and_are_quiet_where_nothing_is_wrong(ledger, url):
    """On a ledger whose only query has just published, it runs, and nothing needs attention."""
    publish(url, 0, {"0": 1})
    states, findings, still = of_watching()
    assert [row[2] for row in ledger.execute(states.encode())] == ["running"]
    assert ledger.execute(findings.encode()).fetchall() == []
    assert ledger.execute(still.encode()).fetchall() == []


def test_a_writer_that_does_not_move_is_found(ledger, url):
    """By the page's third query, an hour after its last batch."""
    publish(url, 0, {"0": 1})
    ledger.execute("UPDATE pgonce.writers SET updated_at = now() - interval '1 hour'")
    assert len(ledger.execute(of_watching()[2].encode()).fetchall()) == 1
