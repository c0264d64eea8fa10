"""
The page docs/tables.md, made from the comments that the migrations write; ``make docs`` writes it.

Runs in: the tests, which compare, and the command. Invariant: what docs/ledger.md keeps for pgonce itself is left out.
"""

from __future__ import annotations

import re

from support.pages import DOCS, quoted_names, sections, table_rows

from pgonce.offsets_store.ledger.migrations import MIGRATIONS

PAGE = DOCS / "tables.md"
_COMMENT = re.compile(r"^COMMENT ON (TABLE|VIEW|COLUMN) pgonce\.(.+?) IS '((?:[^']|'')*)';", re.MULTILINE)
_HEAD = """\
# Tables and views of the ledger

The tables and views of the schema `pgonce` that are for users ([how to read them](ledger.md)). [The
migrations](../offsets_store/ledger/migrations) have their types, keys and indexes.
"""


def page() -> str:
    """The whole page."""
    comments = _comments()
    of_tables = ledger_columns()
    parts = [_HEAD]
    for title, kind in (("Views", "VIEW"), ("Tables", "TABLE")):
        parts.append(f"## {title}\n")
        for name in [name for of, name in comments if of == kind and name in of_tables]:
            rows = "".join(f"| `{column}` | {comments['COLUMN', f'{name}.{column}']} |\n" for column in of_tables[name])
            parts += [f"### `pgonce.{name}`\n", f"{comments[kind, name]}\n", f"| Column | Meaning |\n|---|---|\n{rows}"]
    return "\n".join(parts)


def ledger_columns() -> dict[str, list[str]]:
    """The tables and views that are for users, each with its columns, in the order of the migrations."""
    ours, found = of_pgonce(), dict[str, list[str]]()
    for kind, name in _comments():
        table, _, column = name.partition(".")
        if table in ours or column in ours:
            continue
        columns = found.setdefault(table, [])
        if kind == "COLUMN":
            columns.append(column)
    return found


def of_pgonce() -> set[str]:
    """The tables and columns that docs/ledger.md says are for pgonce itself."""
    [[_, for_us]] = table_rows(sections((DOCS / "ledger.md").read_text(), 2)["Reading it in SQL"])
    return quoted_names(for_us) - {"details"}


def _comments() -> dict[tuple[str, str], str]:
    """Kind and name to text; of what a later migration describes again, the newest."""
    ddl = "\n".join(migration.ddl for migration in MIGRATIONS)
    return {(kind, name): text.replace("''", "'").replace("|", "\\|") for kind, name, text in _COMMENT.findall(ddl)}


if __name__ == "__main__":
    PAGE.write_text(page())
