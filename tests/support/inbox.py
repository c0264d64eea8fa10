"""
A source of rows: a folder of JSON files that remembers what was put into it.

Runs in: pytest (:class:`Inbox`), and in every driver that reads (:func:`events`). Invariant: a file is one batch, and
appears whole.
"""

from __future__ import annotations

import json
import os
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

# Nested types and names that must be quoted, in Spark or in Postgres or in both.
_SPARK_COLUMNS = 'id bigint, `a.b "c"` decimal(10,2), `Größe` string, tags array<string>, detail struct<`Odd Key`: int>'
_POSTGRES_COLUMNS = 'id bigint {key}, "a.b ""c""" numeric(10,2), "Größe" text, tags text[], detail jsonb'

Row = tuple[Any, ...]


class Inbox:
    """
    A folder that a file source reads.

    ``rows`` are those that were put into it, as psycopg reads them; their ids begin at ``first_id``.
    """

    def __init__(self, folder: Path, first_id: int = 0) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self._first_id = first_id
        self._files = 0
        self._newest = 0
        folder.mkdir()

    def add(self, count: int) -> Path:
        """Add one file of so many rows, which one batch will carry."""
        new = [_row(self._first_id + len(self.rows) + offset) for offset in range(count)]
        self.rows += new
        names = ("id", 'a.b "c"', "Größe", "tags", "detail")
        # A file that begins with a dot is not read: it appears when it is renamed.
        unseen = self.folder / ".unfinished"
        unseen.write_text("".join(json.dumps(dict(zip(names, row, strict=True)), default=float) + "\n" for row in new))
        self._files += 1
        # Spark reads the oldest file first, by milliseconds.
        self._newest = max(time.time_ns(), self._newest + 2_000_000)
        os.utime(unseen, ns=(self._newest, self._newest))
        return unseen.rename(self.folder / f"{self._files:04}.json")


def _row(number: int) -> Row:
    price = Decimal(number).scaleb(-2) if number % 5 else None
    return (number, price, f"it's {number}\t\\N ü", [f"t{number % 3}", None], {"Odd Key": number % 7})


def events(spark: SparkSession, folder: Path) -> DataFrame:
    """The folder's rows as a stream, a file a batch."""
    return spark.readStream.schema(_SPARK_COLUMNS).option("maxFilesPerTrigger", 1).json(str(folder))


def events_of_topic(spark: SparkSession, bootstrap_servers: str, topic: str, rows: int) -> DataFrame:
    """The same rows, from a topic whose records are lines of the files; a batch begins when so many rows are there."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("minOffsetsPerTrigger", rows)
        .load()
    )
    return records.select(f.from_json(f.col("value").cast("string"), _SPARK_COLUMNS).alias("row")).select("row.*")


def create_events(url: str, table: str, *, keyed: bool) -> None:
    """
    Create a table for the rows.

    Without a key, so that a doubled row shows; with one, every write of a row is noted in ``<table>_writes``: a
    row that was upserted twice looks like one that was upserted once.
    """
    columns = sql.SQL(_POSTGRES_COLUMNS).format(key=sql.SQL("PRIMARY KEY" if keyed else ""))
    names = {"events": sql.Identifier(table), "writes": sql.Identifier(f"{table}_writes"), "columns": columns}
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("CREATE TABLE {events} ({columns})").format(**names))
        if keyed:
            connection.execute(sql.SQL(_NOTE_EVERY_WRITE).format(**names))


_NOTE_EVERY_WRITE = """
CREATE TABLE {writes} (id bigint);
CREATE FUNCTION {writes}() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO {writes} VALUES (NEW.id); RETURN NULL; END';
CREATE TRIGGER note AFTER INSERT OR UPDATE ON {events} FOR EACH ROW EXECUTE FUNCTION {writes}();
"""
