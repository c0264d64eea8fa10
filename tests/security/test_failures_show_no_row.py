"""
What is kept of a failure shows no value of a row, whatever refuses the row, and by every way in.

Covers: `offsets_store.ledger.failures`.
"""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import functions as f
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.patience import PATIENCE_SECONDS
from support.routed_rows import TABLES, commit, routed, routes
from support.sent_rows import arrow_rows
from support.typed_rows import commit_typed
from support.ways_in import WAYS, Sink

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.failures import kept_words
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.options.destination import destination

CANARY = "KanariE-7"
NUMBER = 987_654_321_987
COLUMNS = {"id": t.LongType(), "name": t.StringType(), "amount": t.LongType()}
ROW = (NUMBER, CANARY, NUMBER)
PLAIN = "CREATE TABLE events (id bigint, name text, amount bigint)"
SEEN = """
CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} RETURN new; END $$;
CREATE TRIGGER seen BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION seen()
"""

# What refuses the row, by the statements that make the table, and how the table is written.
REFUSALS = {
    "not null": (PLAIN + "; ALTER TABLE events ALTER amount SET NOT NULL", {}, [(NUMBER, CANARY, None)]),
    "unique": (PLAIN + "; CREATE UNIQUE INDEX ON events (name)", {}, [ROW, ROW]),
    "check": (PLAIN + "; ALTER TABLE events ADD CHECK (length(name) < 3)", {}, [ROW]),
    "check of a domain": ("CREATE DOMAIN short AS text CHECK (length(value) < 3); CREATE TABLE events "
                          "(id bigint, name short, amount bigint)", {}, [ROW]),
    "foreign key": ("CREATE TABLE people (name text PRIMARY KEY); CREATE TABLE events "
                    "(id bigint, name text REFERENCES people, amount bigint)", {}, [ROW]),
    "foreign key, at COMMIT": ("CREATE TABLE people (name text PRIMARY KEY); CREATE TABLE events (id bigint, name text "
                               "REFERENCES people DEFERRABLE INITIALLY DEFERRED, amount bigint)", {}, [ROW]),
    "exclusion": (PLAIN + "; ALTER TABLE events ADD EXCLUDE USING btree (name WITH =)", {}, [ROW, ROW]),
    "no partition": ("CREATE TABLE events (id bigint, name text, amount bigint) PARTITION BY LIST (name)", {}, [ROW]),
    "too long": ("CREATE TABLE events (id bigint, name varchar(3), amount bigint)", {}, [ROW]),
    "not of the enum": ("CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE events (id bigint, name mood, amount bigint)",
                        {}, [ROW]),
    "not JSON": ("CREATE TABLE events (id bigint, name jsonb, amount bigint)", {}, [ROW]),
    "not a uuid": ("CREATE TABLE events (id bigint, name uuid, amount bigint)", {}, [ROW]),
    "not an address": ("CREATE TABLE events (id bigint, name inet, amount bigint)", {}, [ROW]),
    "too large a number": ("CREATE TABLE events (id bigint, name text, amount integer)", {}, [ROW]),
    "an index on an expression": (PLAIN + "; CREATE INDEX ON events ((name::integer))", {}, [ROW]),
    "a generated column": ("CREATE TABLE events (id bigint, name text, amount bigint, "
                           "twice integer GENERATED ALWAYS AS (name::integer) STORED)", {}, [ROW]),
    "what a trigger raises": (PLAIN + ";" + SEEN.format("RAISE EXCEPTION 'no % here', new.name;"), {}, [ROW]),
    "what a trigger casts": (PLAIN + ";" + SEEN.format("PERFORM new.name::integer;"), {}, [ROW]),
    "what a trigger runs": (PLAIN + ";" + SEEN.format("EXECUTE 'SELECT ' || new.name;"), {}, [ROW]),
    "what a trigger leaves out": ("CREATE TABLE events (id bigint PRIMARY KEY, name text, amount bigint);"
                                  + SEEN.format("new.id = 3;"), {"mode": "upsert", "keys": ["id"]}, [ROW, (4, "", 4)]),
    "a key twice": ("CREATE TABLE events (id bigint, name text PRIMARY KEY, amount bigint)",
                    {"mode": "upsert", "keys": ["name"]}, [ROW, (5, CANARY, 6)]),
    "a key twice, as a change": ("CREATE TABLE events (id bigint, name text PRIMARY KEY, amount bigint)",
                                 {"mode": "apply", "keys": ["name"], "delete_when": "amount = 7"},
                                 [ROW, (5, CANARY, 6)]),
    "no key": ("CREATE TABLE events (id bigint PRIMARY KEY, name text, amount bigint)",
               {"mode": "upsert", "keys": ["id"]}, [(None, CANARY, NUMBER)]),
    "too many bad rows": (PLAIN + "; ALTER TABLE events ADD CHECK (length(name) < 3)",
                          {"dead_letters": True, "max_dead_letters": 1}, [ROW, ROW, ROW, (1, "", 1)]),
    "no good row": (PLAIN + "; ALTER TABLE events ADD CHECK (length(name) < 3)", {"dead_letters": True}, [ROW, ROW]),
}  # fmt: skip


def refuse_canary(error: PgonceError) -> None:
    """Fail if what is kept of the error shows the row."""
    for canary in (CANARY, str(NUMBER), f"{NUMBER:,}"):
        assert canary not in kept_words(error), error.code


class TestEveryRefusal:
    @pytest.mark.parametrize("staged", [False, True], ids=["inline", "staged"])
    @pytest.mark.parametrize("refusal", REFUSALS)
    def test_by_postgres_or_before(self, url, admin, refusal, staged):
        """Constraints, types, triggers, keys, dead letters: the error may show the row, and what is kept does not."""
        ddl, how, rows = REFUSALS[refusal]
        admin.execute(ddl.encode())
        options = {"mode": "append", "keys": (), **how}
        where = destination("events", options.pop("mode"), options.pop("keys"), None, **options)
        with pytest.raises(PgonceError) as raised:
            commit_typed(url, 0, where, COLUMNS, rows, staged=staged)
        refuse_canary(raised.value)

    def test_the_errors_themselves_show_it(self, url, admin):
        """So that these tests can fail: some of the sentences in the log have the value."""
        admin.execute(REFUSALS["not a uuid"][0].encode())
        with pytest.raises(PgonceError, match=CANARY):
            commit_typed(url, 0, destination("events"), COLUMNS, [ROW])

    def test_a_lock_in_the_middle_of_a_row(self, url, admin):
        """Postgres repeats the row for which it waits, and the other session's statement may have it as well."""
        admin.execute((PLAIN + "; CREATE UNIQUE INDEX ON events (id)").encode())
        with psycopg.connect(url) as other:
            other.execute(f"INSERT INTO events VALUES ({NUMBER})".encode())
            with pytest.raises(PgonceError) as raised:
                commit_typed(url, 0, destination("events"), COLUMNS, [ROW], lock_timeout=0.5)
        assert raised.value.code == "LOCKED"
        refuse_canary(raised.value)

    def test_a_session_that_is_ended_in_the_middle_of_a_row(self, url, admin):
        """What the server says at last has the row too."""
        body = "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1);"
        admin.execute((PLAIN + ";" + SEEN.format(body)).encode())
        with pytest.raises(PgonceError) as raised:
            commit_typed(url, 0, destination("events"), COLUMNS, [ROW])
        refuse_canary(raised.value)

    def test_a_route_that_is_not_known(self, url, admin):
        """The value that chooses a table is a value of the row."""
        admin.execute(TABLES.encode())
        with pytest.raises(PgonceError, match=CANARY) as raised:
            commit(url, make_planned_batch(0), routes({"orders": {}}), routed((CANARY, 1, "x")))
        refuse_canary(raised.value)

    def test_a_value_that_cannot_be_encoded(self):
        """The task names the column and the row."""
        struct = t.StructType([t.StructField("name", t.StringType())])
        with pytest.raises(PgonceError) as raised:
            CopyEncoder(struct).encode(arrow_rows(struct, [(f"{CANARY}\0",)]))
        refuse_canary(raised.value)


@pytest.mark.spark
class TestEveryWayIn:
    @pytest.mark.parametrize("way", [way for way in WAYS if not way.upserts], ids=lambda way: way.name)
    @pytest.mark.parametrize("refusal", ["unique", "not a uuid", "what a trigger raises"])
    def test_a_kept_failure_has_its_code_and_no_value_of_a_row(
        self, spark, url, checkpoint, admin, observer, way, refusal
    ):
        """One row, by the commit, with the code and the sink, and without the value."""
        ensure_ledger(url)
        admin.execute(REFUSALS[refusal][0].encode())
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        frame = source.select(f.lit(NUMBER).alias("id"), f.lit(CANARY).alias("name"), f.lit(NUMBER).alias("amount"))
        query = way.append(frame, Sink(url, "events", checkpoint)).queryName("orders").start()
        with pytest.raises(Exception, match=r"\[[A-Z_]+\] Postgres refused"):
            query.awaitTermination(PATIENCE_SECONDS)
        ((text,),) = observer.execute("SELECT f::text FROM pgonce.failures AS f")
        assert CANARY not in text
        assert str(NUMBER) not in text
        (failure,) = OffsetsStore(url).failures()
        assert (failure.seen_by, failure.batch_id, failure.attempts) == ("commit", 0, 1)
        assert (failure.query_id, failure.run_id, failure.query_name) == (str(query.id), str(query.runId), "orders")
        assert failure.sink_name in ("public.events", "events")
        assert failure.message.startswith("Postgres refused the batch with SQLSTATE")
