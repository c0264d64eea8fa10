"""
What a refusal of a type advises works: SQL in a transactional function converts what no column takes.

Covers: sink.writing.table.fit, sink.foreach_batch.transactional_batch.
"""

from __future__ import annotations

import psycopg
import pytest
from support.query_runs import finish
from support.ways_in import WAYS, Sink

from pgonce import transactional_batch

VALUES = "'12.50' AS price, '10:30:45' AS opens, 'a name' AS label"
TABLE = "CREATE TABLE prices (id bigint, price money, opens timetz, label name)"


@pytest.mark.spark
def test_sql_in_a_function_writes_what_is_refused(spark, admin, url, tmp_path):
    """A text goes into money, timetz without an offset and name, by way of a temporary table."""
    admin.execute(TABLE)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rows.json").write_text('{"id": 1}')
    rows = spark.readStream.schema("id bigint").json(str(tmp_path / "in")).selectExpr("id", *VALUES.split(", "))

    @transactional_batch(url, name="prices")
    def write(batch, tx):
        tx.append(batch, "pg_temp.arrived", create_table=True)
        tx.execute("SET LOCAL TIME ZONE 'Asia/Kathmandu'")
        tx.execute("INSERT INTO prices SELECT id, price::money, opens::timetz, label::name FROM pg_temp.arrived")

    finish(rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(write))
    assert admin.execute("SELECT price::numeric::text, opens::text, label::text FROM prices").fetchall() == [
        ("12.50", "10:30:45+05:45", "a name")
    ]


EVERYTHING = {
    "at": ("timestamp(3)", "timestamp_ntz'2023-06-19 10:50:45.123'", "2023-06-19 10:50:45.123"),
    "day": ("time(3)", "'10:40:45.678'", "10:40:45.678"),
    "clock": ("timetz", "'10:30:45.123456Z'", "10:30:45.123456+00"),
    "took": ("interval(3)", "interval '1 02:03:04.567' day to second", "26:03:04.567"),
    "wide": ("numeric(78,0)", "'115792089237316195423570985008687907853269984665640564039457584007913129639935'", None),
    "tags": ("jsonb", "array('a', 'b')", '["a", "b"]'),
    "grid": ("int[][]", "array(array(1, 2), array(3, 4))", "{{1,2},{3,4}}"),
}


@pytest.mark.spark
@pytest.mark.parametrize("way", [way for way in WAYS if not way.upserts], ids=lambda way: way.name)
def test_every_way_in_writes_what_fits_by_value(spark, admin, url, way, tmp_path):
    """The defaults of other tools (timestamp(3), tags as jsonb, a grid) are written, however the rows travel."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in EVERYTHING.items())
    admin.execute(f"CREATE TABLE events (id bigint, {columns})".encode())
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rows.json").write_text('{"id": 1}')
    rows = spark.readStream.schema("id bigint").json(str(tmp_path / "in"))
    rows = rows.selectExpr("id", *(f"{value} AS {name}" for name, (_, value, _) in EVERYTHING.items()))
    finish(way.append(rows, Sink(url, "events", str(tmp_path / "checkpoint"))))
    with psycopg.connect(url, options="-c timezone=UTC -c intervalstyle=postgres -c datestyle=ISO") as connection:
        texts = ", ".join(f"{name}::text" for name in EVERYTHING)
        (found,) = connection.execute(f"SELECT {texts} FROM events".encode()).fetchall()
    assert found == tuple(text or value.strip("'") for _, value, text in EVERYTHING.values())
