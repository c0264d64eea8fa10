"""
The Python of the README, of docs/start/which-way-in.md and of its batch job runs, and its rows are in their tables.

It runs as it stands, but for the address and the checkpoints' folder; and of two programs of the chooser that write one
table, the second one says that it is independent.
"""

import re

import psycopg
import pytest
from maven import ROOT
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as on the pages)
from support.fixtures.driver import wait_until
from support.patience import PATIENCE_SECONDS

ADDRESS = re.compile(r"postgresql://\w+(?::\w+)?@[\w.]+/shop")
TABLES = """
CREATE TABLE orders (id bigint, customer text, day date, placed_at timestamptz, amount bigint);
CREATE TABLE totals (customer text PRIMARY KEY, count bigint);
CREATE TABLE order_days (day date PRIMARY KEY, newest_order timestamptz);
CREATE TABLE shop_state (last_batch bigint, orders bigint);
INSERT INTO shop_state VALUES (-1, 0);
"""
TEN = range(10)


def snippets(page: str, url: str, folder: str) -> list[str]:
    """The Python of a page, with this database and this folder in place of the page's, and what ends put to an end."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [
        ADDRESS.sub(url, block)
        .replace('"/checkpoints/', f'"{folder}/')
        .replace('"ticks-checkpoint', f'"{folder}/ticks')
        for block in blocks
    ]


def orders(frame):
    """Ten orders, in the columns that the page's programs use."""
    return frame.select(
        F.col("value").alias("id"),
        F.concat(F.lit("c"), F.col("value") % 3).alias("customer"),
        F.to_date(F.lit("2026-11-20")).alias("day"),
        F.to_timestamp(F.lit("2026-11-20 12:00:00")).alias("placed_at"),
        F.col("value").alias("amount"),
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.no_ledger
def test_each_way_brings_rows(spark, url, observer, admin, tmp_path):
    """Each of the ways that the page writes brings every row once."""
    admin.execute(TABLES)
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "ten.json").write_text("\n".join(f'{{"value": {number}}}' for number in TEN))
    numbers = spark.readStream.schema("value BIGINT").json(str(tmp_path / "numbers"))
    of_stream = {"orders": orders(numbers), "totals": orders(numbers).groupBy("customer").count()}
    of_job = {"orders": orders(spark.createDataFrame([(number,) for number in TEN], "value BIGINT"))}
    writer, sink, function = snippets("docs/start/which-way-in.md", url, str(tmp_path))
    job, *_ = snippets("docs/batch-jobs.md", url, str(tmp_path))
    for program in (writer, sink):
        names = {"spark": spark, **of_stream}
        exec(program, names)
        names["query"].processAllAvailable()
        names["query"].stop()
    assert rows_of(observer, "totals") == [("c0", 4), ("c1", 3), ("c2", 3)]
    assert [row[0] for row in rows_of(observer, "orders")] == list(TEN)

    admin.execute("TRUNCATE orders")
    # The page's programs are of different jobs: this table is fed by a query of its own.
    names = {"spark": spark, **of_stream}
    exec(function.replace('name="shop"', 'name="shop", independent=True'), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert [row[0] for row in rows_of(observer, "orders")] == list(TEN)
    assert len(rows_of(observer, "order_days")) == 1
    assert rows_of(observer, "shop_state") == [(0, 10)]

    admin.execute("TRUNCATE orders")
    for _ in range(2):
        exec(job, {"spark": spark, **of_job})
    assert [row[0] for row in rows_of(observer, "orders")] == list(TEN)


def rows_of(observer: psycopg.Connection, table: str) -> list[tuple[object, ...]]:
    """A table's rows, by their first column."""
    return observer.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.no_ledger
def test_the_program_that_the_readme_shows_writes_rows(spark: SparkSession, url, observer, tmp_path, monkeypatch):
    """The program that the README shows writes rows."""
    program, _ = snippets("README.md", url, str(tmp_path))
    assert program.endswith(".awaitTermination()\n")
    exec(program.removesuffix(".awaitTermination()\n"), {})
    (query,) = spark.streams.active
    count = "SELECT coalesce(sum(rows), 0) FROM pgonce.batches"
    assert wait_until(lambda: query.lastProgress and observer.execute(count).fetchone() > (0,), PATIENCE_SECONDS)
    query.stop()
    rows, distinct = observer.execute("SELECT count(*), count(DISTINCT value) FROM ticks").fetchone()
    assert rows == distinct > 0
