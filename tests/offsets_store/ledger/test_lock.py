"""The lock on a writer's row, and what is read under it, in one trip with the begin."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
from support.blocked import wait_for_blocked
from support.committed_rows import commit_rows

from pgonce.offsets_store.verdict.decide import Verdict

EXCHANGE = "BEGIN; ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b; COMMIT"


def publish(url, number, table):
    """Append a row of a batch to a table of the query, under the table's own name."""
    return commit_rows(url, "q1", number, number, table=table)


def test_a_batch_is_judged_by_its_own_records_if_tables_are_exchanged_meanwhile(url, admin):
    """The table gets the name of another one of the query while the lock is waited for; each sink keeps its records."""
    admin.execute("CREATE TABLE a (id bigint, name text); CREATE TABLE b (id bigint, name text)")
    for number in range(3):
        assert [publish(url, number, table) for table in "ab"] == [Verdict.NEW] * 2
    # Batch 3 of the other sink is there: by its records, batch 3 of this one would be a doubled name.
    assert publish(url, 3, "b") is Verdict.NEW
    with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT FROM pgonce.writers WHERE sink_name = 'public.a' FOR UPDATE")
        waiting = pool.submit(publish, url, 3, "a")
        wait_for_blocked(admin, holder)
        admin.execute(EXCHANGE)
        holder.commit()
        assert waiting.result() is Verdict.NEW
    ends = "SELECT sink_name, last_batch_id, generation FROM pgonce.writers ORDER BY 1"
    assert admin.execute(ends).fetchall() == [("public.a", 3, 0), ("public.b", 3, 0)]
