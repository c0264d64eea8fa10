"""
Decode the records of letters again, so that a replay finds a row in each of them.

Runs in a replay, in its transaction. Invariant: a record is decoded for the table as it is now, by the code that
decodes the records of a batch. What cannot be decoded now either is an error that names the letter.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from sqlalchemy import Connection, Text, cast, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB

from pgonce.dead_letters.chosen_letters import shown_ids
from pgonce.offsets_store.errors import UNCHANGED, RecoveryError
from pgonce.offsets_store.ledger.tables import dead_letters
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.postgres.search_path import ENTER_COLUMNS, leave_in_tx
from pgonce.offsets_store.status.dead_letters import StoredLetter, one_of
from pgonce.sink.decoding.by_table import reader_for
from pgonce.sink.decoding.fields import arrow_type
from pgonce.sink.decoding.record_reader import OF_KAFKA
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.encoding.unfit_rows import REFUSED, row_texts
from pgonce.sink.writing.bad_rows.recalled_destination import recalled
from pgonce.sink.writing.recorded_destination import recorded
from pgonce.sink.writing.table.catalogue import look_up_table
from pgonce.sink.writing.table.table_name import missing_table

REGISTRY_URL = "PGONCE_SCHEMA_REGISTRY_URL"
"""The variable of the environment with the registry, whose login stands in no letter."""
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_RECORDS = pa.schema([*((name, arrow_type(of)) for name, of in OF_KAFKA.items()), ("headers", _HEADERS)])


def decoded_in_tx(connection: Connection, letters: Sequence[StoredLetter]) -> list[StoredLetter]:
    """
    The same letters, each with a row, which ``pgonce.dead_letters`` has from here on in place of the record.

    :raises RecoveryError: DEAD_LETTER_UNMENDED, REPLAY_IMPOSSIBLE.
    :raises TargetError: TARGET_MISSING, COLUMN_UNKNOWN.
    """
    # A record stands in place of a row.
    undecoded = [letter for letter in letters if letter.row_data == "{}"]
    if not undecoded:
        return list(letters)
    table = dead_letters.c
    columns = table.dead_letter_id, table.record_key, table.record_value, table.record_headers
    ids = [letter.dead_letter_id for letter in undecoded]
    records = {row[0]: row[1:] for row in connection.execute(select(*columns).where(one_of(columns[0], ids)))}
    driver = driver_connection(connection)
    # Tables are looked up along the user's search_path.
    leave_in_tx(driver)
    found = {one.dead_letter_id: _decoded(driver, one, records[one.dead_letter_id]) for one in undecoded}
    made = {letter: row for letter, row in found.items() if not isinstance(row, str)}
    unmended = {letter: why for letter, why in found.items() if isinstance(why, str)}
    if unmended:
        first, *others = unmended
        more = f" Others cannot be decoded either: {shown_ids(others)}." if others else ""
        raise RecoveryError(
            "DEAD_LETTER_UNMENDED",
            f"The record of dead letter {first} cannot be decoded: {unmended[first]}{more}",
            UNCHANGED,
            "Repair `record_value` (or `record_key`) of the letter, or the table, and replay it again. With --id, only "
            "the letters that you name are replayed.",
        )
    driver.execute(sql.SQL("SELECT {}").format(ENTER_COLUMNS))
    for one in made.values():
        values = {"row_data": cast(literal(one.row_data, Text), JSONB), "destination": one.destination}
        connection.execute(update(dead_letters).where(table.dead_letter_id == one.dead_letter_id).values(values))
    return [made.get(letter.dead_letter_id, letter) for letter in letters]


def _decoded(driver: psycopg.Connection, letter: StoredLetter, record: Sequence[Any]) -> StoredLetter | str:
    """The letter with its row, or why there is none."""
    where, _ = recalled(letter.destination)
    if where.decoding and where.decoding.registry_url:
        url = os.environ.get(REGISTRY_URL, "")
        where = replace(where, decoding=replace(where.decoding, registry_url=url))
        if not url:
            raise RecoveryError(
                "DEAD_LETTER_UNMENDED",
                f"The record of dead letter {letter.dead_letter_id} has its schema in a registry.",
                UNCHANGED,
                f"Set {REGISTRY_URL} to what the query has in schemaRegistryUrl, and replay it again.",
            )
    found, table = look_up_table(driver, where.table)
    if table is None:
        raise missing_table(driver, found)
    reader = reader_for(table, where, with_positions=False)
    rows = reader.read(_as_kafka_has_it(letter, record))
    if len(rows) == 0 or REFUSED in rows.schema.names:
        return str(rows[REFUSED][0]["message"]) if len(rows) else "It has no value, and nullValues=ignore is set."
    columns = encoded_columns(reader.struct_type)
    (text,) = row_texts(rows.select([column.name for column in columns]).columns, columns)
    return replace(letter, row_data=text, destination=recorded(where, columns, letter.destination.get("oid")))


def _as_kafka_has_it(letter: StoredLetter, record: Sequence[Any]) -> pa.RecordBatch:
    key, value, headers = record
    place = letter.position or {}
    row = {
        **{name: place.get(name) for name in ("topic", "partition", "offset")},
        "key": key and bytes(key),
        "value": None if value is None else bytes(value),
        "headers": headers and [{"key": name, "value": None if of is None else b64decode(of)} for name, of in headers],
    }
    batch = pa.RecordBatch.from_pylist([row], schema=_RECORDS)
    sent = pa.array([place.get("timestamp")], pa.int64()).cast(_RECORDS.field("timestamp").type)
    return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", sent)
