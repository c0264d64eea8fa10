"""What the role may not do with a table is found before a row is computed, and nothing else is refused."""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql import types as t
from support.typed_rows import commit_typed, struct_of
from support.with_rooms import look_once

from pgonce.offsets_store.errors import PgonceError, TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination

KINDS = {"id": t.LongType(), "name": t.StringType(), "at": t.IntegerType(), "gone": t.BooleanType()}
_queries = itertools.count()
APPLY = {"order_by": "at", "delete_when": "gone"}


@pytest.fixture
def granted(url, admin, login):
    """Give the role only these privileges on the table ``events``, and all that it needs on the ledger."""
    ensure_ledger(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, at int, other text)")
    for grant in grants(login.user):
        admin.execute(grant)

    def grant(*privileges):
        admin.execute(f"TRUNCATE events; REVOKE ALL ON events FROM {login.user}")
        for privilege in privileges:
            admin.execute(f"GRANT {privilege} ON events TO {login.user}")

    return grant


def kinds_of(mode):
    """The columns of the rows: only changes say whether they delete."""
    return {name: kind for name, kind in KINDS.items() if mode == "apply" or name != "gone"}


def look(login, mode, **how):
    """A first look under the role, by a query of its own."""
    columns = encoded_columns(struct_of(kinds_of(mode)))
    look_once(next(_queries), login.url, destination("events", mode, **how), columns)


def commit(login, mode, **how):
    """A batch of one row, under the role."""
    row = tuple(value for value, name in zip((1, "a", 1, False), KINDS, strict=True) if name in kinds_of(mode))
    return commit_typed(
        login.url, 0, destination("events", mode, **how), kinds_of(mode), [row], query=f"q{next(_queries)}"
    )


OF_COLUMNS = "(id, name, at)"


def test_what_is_enough_for_the_commit_is_enough_for_the_look(login, granted):
    """Privileges on columns, too; and the commit proves that they are enough."""
    for privileges, mode, how in (
        (["INSERT"], "append", {}),
        ([f"INSERT {OF_COLUMNS}"], "append", {}),
        (["INSERT", "SELECT", "UPDATE"], "upsert", {}),
        ([f"INSERT {OF_COLUMNS}", f"SELECT {OF_COLUMNS}", "UPDATE (name, at)"], "upsert", {}),
        (["INSERT", "SELECT"], "upsert", {"on_conflict": "ignore"}),
        (["INSERT", "SELECT", "UPDATE (name)"], "upsert", {"update_columns": ["name"]}),
        (["INSERT", "DELETE"], "complete", {}),
        (["INSERT", "DELETE", "SELECT", "UPDATE"], "apply", APPLY),
        (["INSERT", "SELECT", "UPDATE"], "apply", {**APPLY, "deletes": "ignore"}),
    ):
        granted(*privileges)
        look(login, mode, **how)
        commit(login, mode, **how)


def test_what_every_batch_needs_is_refused_at_once(login, granted, admin):
    """With the GRANT that is missing, and is enough; the commit would have been refused for the same reason."""
    for privileges, mode, how, lacks in (
        ([], "append", {}, r"GRANT INSERT ON"),
        ([], "upsert", {}, r"GRANT INSERT, SELECT, UPDATE ON"),
        (["SELECT", "UPDATE", "DELETE"], "append", {}, r"GRANT INSERT ON"),
        (["INSERT (id, name)"], "append", {}, r'GRANT INSERT \("at"\) ON "public"\."events"'),
        (["INSERT", "SELECT"], "upsert", {}, r"GRANT UPDATE ON"),
        (["INSERT", "SELECT", "UPDATE (name)"], "upsert", {}, r'GRANT UPDATE \("at"\)'),
        (["INSERT", "UPDATE"], "upsert", {}, r"GRANT SELECT ON"),
        (["INSERT", "SELECT (name)", "UPDATE"], "upsert", {}, r'GRANT SELECT \("id", "at"\)'),
        (["INSERT", "SELECT", "UPDATE"], "complete", {}, r"GRANT DELETE ON"),
        (["INSERT", "UPDATE", "DELETE"], "apply", APPLY, r"GRANT SELECT ON"),
    ):
        granted(*privileges)
        with pytest.raises(TargetError, match=rf"\[TARGET_NOT_PERMITTED\].*{lacks}") as refused:
            look(login, mode, **how)
        with pytest.raises(PgonceError, match="NOT_PERMITTED"):
            commit(login, mode, **how)
        admin.execute(refused.value.remedy)
        look(login, mode, **how)
        commit(login, mode, **how)


def test_a_schema_that_may_not_be_used(login, admin):
    """Its tables cannot be looked up at all, and that is said as the commit says it."""
    admin.execute("CREATE SCHEMA sales; CREATE TABLE sales.events (id bigint, name text, at int)")
    columns = encoded_columns(struct_of({"id": t.LongType()}))
    with pytest.raises(TargetError, match=r"\[TARGET_NOT_PERMITTED\].*schema sales"):
        look_once(next(_queries), login.url, destination("sales.events"), columns)
