"""A table is found by the name that it has now, whatever it was called when the transaction took its snapshot."""

import psycopg
import pytest
from psycopg import IsolationLevel

from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.writing.table.table_name import resolve_table


def test_a_table_that_is_renamed_meanwhile_is_found_by_its_new_name(url, admin):
    """The name was not cut off, although the snapshot knows the table by a shorter one."""
    admin.execute("CREATE TABLE ev (id bigint)")
    with psycopg.connect(url) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        admin.execute("ALTER TABLE ev RENAME TO ev_x")
        found = resolve_table(connection, "public.ev_x")
    oid = admin.execute("SELECT 'ev_x'::regclass::oid::bigint").fetchone()[0]
    assert (found.qualified_name, found.oid) == ("public.ev_x", oid)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_name_that_postgres_would_cut_off_is_refused(is_there, url, admin):
    """Two tables whose names begin alike would be one."""
    if is_there:
        admin.execute(f"CREATE TABLE {'n' * 63} (id bigint)")
    with psycopg.connect(url) as connection, pytest.raises(PgonceError, match=r"\[BAD_TABLE_NAME\]"):
        resolve_table(connection, "n" * 64)
