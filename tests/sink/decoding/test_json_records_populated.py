"""Random records, written by json, are in the table as Postgres' own ``jsonb_populate_record`` makes them."""

from __future__ import annotations

import json

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.decoded_rows import write_records

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-999_999_999, max_value=999_999_999)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TYPES = {
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "numeric": NUMBERS.map(lambda number: Number(str(number))),
    "numeric(12,3)": NUMBERS.map(lambda number: Number(str(number))),
    "double precision": st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300),
    "boolean": st.booleans(),
    "text": TEXTS,
    "varchar(20)": TEXTS,
    "date": st.dates().map(str),
    "timestamp": st.datetimes().map(lambda moment: moment.isoformat()),
    "timestamptz": st.datetimes().map(lambda moment: moment.isoformat() + "+02:00"),
    "uuid": st.uuids().map(str),
    "inet": st.ip_addresses().map(str),
    "jsonb": JSON,
    "json": JSON,
    "integer[]": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=4),
    "text[]": st.lists(st.none() | TEXTS, max_size=4),
}


class Number(float):
    """A number that is written with the digits that it was made of."""

    def __new__(cls, digits):
        made = super().__new__(cls, digits)
        made.digits = digits
        return made

    def __repr__(self):
        return self.digits


ROWS = st.fixed_dictionaries({}, optional={f"c{number}": st.none() | of for number, of in enumerate(TYPES.values())})


def texts_of_both(url):
    """The rows of both tables, as texts, so that a numeric has its digits."""
    with psycopg.connect(url) as connection:
        # Postgres writes a text anew for a json column, and we leave it as it is.
        names = ", ".join(f"c{n}::{'jsonb' if kind == 'json' else kind}::text" for n, kind in enumerate(TYPES))
        query = f"SELECT {names} FROM {{}}"
        return [sorted(connection.execute(query.format(of)).fetchall(), key=repr) for of in ("t", "populated")]


@given(st.lists(ROWS, max_size=6), st.booleans())
@quick
def test_records_are_read_as_postgres_reads_them(url, rows, spaced):
    """Every type, with each field there, null or missing; with white space, and with characters escaped or not."""
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(TYPES))
    with psycopg.connect(url) as connection:
        connection.execute(f"DROP TABLE IF EXISTS t, populated; CREATE TABLE t ({columns})")
        connection.execute("CREATE TABLE populated (LIKE t)")
        texts = [json.dumps(row, ensure_ascii=spaced, indent=2 if spaced else None) for row in rows]
        for text in texts:
            # As json, which keeps what a json column is to keep.
            statement = "INSERT INTO populated SELECT r.* FROM json_populate_record(NULL::populated, %s::json) AS r"
            connection.execute(statement, [text])
    refused = write_records(url, [text.encode() for text in texts])
    assert refused == []
    stored, populated = texts_of_both(url)
    assert stored == populated
