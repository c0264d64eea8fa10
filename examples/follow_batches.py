"""
Follow the batches that queries with ``notifyChannel=batches`` commit: ``python follow_batches.py URL [CHANNEL]``.

A notification only wakes this program, and the ledger says what is new. So what is committed while the connection is
lost is told later, and nothing is told twice. Batches are missed in two cases: while it was away, more were committed
than ``retainBatches`` keeps; or a failover lost commits, and others came under ids that it has seen already. It needs a
session of its own: PgBouncer in transaction mode cannot LISTEN.
"""

import sys
import time

import psycopg
from psycopg import sql

NEWER = """
SELECT w.query_name, w.sink_name, b.batch_id, b.rows, b.writer_id, b.generation
FROM pgonce.batches AS b JOIN pgonce.writers AS w USING (writer_id)
WHERE (b.generation, b.batch_id) > (coalesce((%(seen)s::jsonb -> b.writer_id::text ->> 0)::int, -1),
                                    coalesce((%(seen)s::jsonb -> b.writer_id::text ->> 1)::bigint, -1))
ORDER BY b.writer_id, b.generation, b.batch_id
"""
url, channel = sys.argv[1], (sys.argv[2:] or ["batches"])[0]
seen: dict[str, list[int]] = {}  # By writer, the newest batch; keep it in a file to go on after a restart.
while True:
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            # First listen and then ask: what is committed between the two is told by either.
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            while True:
                for query, sink, batch, rows, writer, generation in connection.execute(
                    NEWER, {"seen": psycopg.types.json.Jsonb(seen)}
                ):
                    print(f"batch {batch} of {query} into {sink}: {rows} rows", flush=True)
                    seen[str(writer)] = [generation, batch]
                # Look again after a minute without a message: a dead connection may be silent.
                list(connection.notifies(timeout=60, stop_after=1))
    except psycopg.OperationalError as error:
        print(f"The connection was lost: {error}. Trying again.", file=sys.stderr)
        time.sleep(1)
