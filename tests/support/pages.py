"""
Read a page of docs/: its sections, its tables and its SQL.

Pure. Invariant: the page is read as Markdown shows it, so a test compares what a reader sees.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def sql_blocks(text: str) -> list[str]:
    """The statements of the SQL blocks in a text."""
    found = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [statement.strip() for block in found for statement in block.split(";") if statement.strip()]


def sections(text: str, level: int) -> dict[str, str]:
    """The text below each heading of this level, by the heading, up to the next one of this level or a higher one."""
    parts = re.split(rf"^(#{{1,{level}}}) (.+)$", text, flags=re.MULTILINE)
    return {
        heading: body
        for marks, heading, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        if len(marks) == level
    }


def table_rows(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads, by cells."""
    rows = [[cell.strip() for cell in row.split(" | ")] for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE)]
    heads = len(re.findall(r"^\|(?:-+\|)+$", text, re.MULTILINE))
    assert heads == 1, "a section has one table, so that its first row is its head"
    return rows[1:]


def quoted_names(text: str) -> set[str]:
    """What stands in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))
