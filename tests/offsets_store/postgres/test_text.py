"""A table's name as one text: no two tables have the same, and Postgres finds the table by it."""

from __future__ import annotations

from psycopg import sql

from pgonce.offsets_store.postgres.text import QUALIFIED_NAME, qualified_name

TABLES = [
    ("public", "events"),
    ("a", "b.c"),
    ("a.b", "c"),
    ("_x1", "y_2"),
    ("public", "1st"),
    ("public", "Events"),
    ("public", 'E"v"'),
    ("public", "événements"),
    ("public", "a$b"),
    ("public", "ends\n"),
    ("select", "order"),
    ("public", "%s {} :x"),
]


def test_it_is_what_people_write():
    """Only a name that SQL would read otherwise has quotes."""
    assert qualified_name("public", "events_2") == "public.events_2"
    assert (qualified_name("a", "b.c"), qualified_name("a.b", "c")) == ('a."b.c"', '"a.b".c')
    assert qualified_name("Odd", 'a"b') == '"Odd"."a""b"'


def test_sql_makes_the_same_text_and_finds_the_table_by_it(admin):
    """Key words too, which have no quotes."""
    for schema, name in TABLES:
        admin.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        admin.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(schema, name)))
        oid, text = admin.execute(
            f"SELECT c.oid, {QUALIFIED_NAME} FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s",
            [schema, name],
        ).fetchone()
        assert text == qualified_name(schema, name)
        assert admin.execute("SELECT to_regclass(%s)::oid", [text]).fetchone() == (oid,)
