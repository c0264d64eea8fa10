"""Changes of any columns on their way into a table without Spark, and what became of them."""

from __future__ import annotations

from pyspark.sql import types as t
from support.sent_rows import publish

from pgonce.sink.writing.by_key.apply import MOVED, STAGES
from pgonce.sink.writing.by_key.unread_value import UNREAD
from pgonce.sink.writing.written import PUT_ASIDE

WRITE, DELETE = False, True


def changes(delete_column: str = "gone", **columns: t.DataType) -> t.StructType:
    """The columns, and one that says whether a row deletes."""
    fields = [t.StructField(name, data_type) for name, data_type in columns.items()]
    return t.StructType([*fields, t.StructField(delete_column, t.BooleanType())])


PLAIN = changes(id=t.LongType(), name=t.StringType(), seq=t.LongType())


def apply(url, *rows, struct=PLAIN, transport="inline", order_by="seq", **options):
    """Apply rows, the last column of which says whether they delete; what became of them, without what is zero."""
    how = {"mode": "apply", "delete_when": "gone", **options}
    counts = publish(url, transport, struct, rows, order_by=order_by, **how).counts
    assert set(counts) - {PUT_ASIDE, UNREAD, MOVED} == set(STAGES)
    # A row that moved is counted, and so is its old row.
    assert sum(counts.values()) - counts.get(UNREAD, 0) - 2 * counts.get(MOVED, 0) == len(rows)
    return {stage: count for stage, count in counts.items() if count}


def stored(admin, table="events"):
    """The rows of a table, in the order of its first column."""
    return admin.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()


def letters(admin):
    """The keys of the rows that were put aside, and why."""
    return admin.execute("SELECT (row_data ->> 'id')::int, code FROM pgonce.dead_letters ORDER BY 1").fetchall()
