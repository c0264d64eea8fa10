"""
A ledger of many made-up queries in every state, to look at and to measure: hundreds of them in a few statements.

Runs in: pytest, and in the benchmark of the page. Invariant: the rows are those that commits and listeners write.
"""

from __future__ import annotations

import psycopg

_NAMES = (
    "orders", "payments", "clicks", "customers", "inventory", "shipments", "returns", "sessions", "prices", "refunds",
)  # fmt: skip

_WRITERS = """
INSERT INTO pgonce.writers
    (query_id, sink_name, query_name, run_id, last_batch_id, end_offsets, created_at, updated_at, targets,
     checkpoint_location)
SELECT md5('query ' || i)::uuid::text, s.name, q.name, md5('run ' || i)::uuid::text, %(batches)s - 1 + 1000 * i,
       jsonb_build_object('0', jsonb_build_object(q.topic, (SELECT jsonb_object_agg(p::text, 100000 + 731 * i)
                                                             FROM generate_series(0, 11) AS p))),
       now() - interval '3 hours',
       now() - make_interval(secs => mod(i * 7, 23) + CASE WHEN mod(i, 11) = 9 THEN 5000 ELSE 0 END),
       '{}', 's3://warehouse/checkpoints/' || q.name
FROM generate_series(1, %(queries)s) AS i
CROSS JOIN LATERAL (SELECT (%(names)s::text[])[mod(i - 1, 10) + 1] AS topic) AS t
CROSS JOIN LATERAL (
    SELECT t.topic, t.topic || CASE WHEN i > 10 THEN '_' || lpad((i / 10)::text, 2, '0') ELSE '' END AS name
) AS q
CROSS JOIN LATERAL (SELECT 'public.' || q.name AS name) AS s
"""
_BATCHES = """
INSERT INTO pgonce.batches
    (writer_id, generation, batch_id, run_id, attempt, start_offsets, end_offsets, offset_log, rows, transport,
     committed_at)
SELECT w.writer_id, 0, w.last_batch_id - %(batches)s + 1 + b, w.run_id, gen_random_uuid(), w.end_offsets, w.end_offsets,
       'x',
       greatest((200 + 170 * mod(w.writer_id * 7, 17)) * (
           1 + CASE mod(w.writer_id, 3) WHEN 0 THEN 0 ELSE 0.8 END
               * sin((b + 13.0 * w.writer_id) / (5 + mod(w.writer_id, 23)))
           + 0.5 * random() + CASE WHEN random() < 0.02 THEN 2 ELSE 0 END), 0),
       'inline', w.updated_at - make_interval(secs => (%(batches)s - 1 - b) * %(seconds)s)
FROM pgonce.writers AS w CROSS JOIN generate_series(0, %(batches)s - 1) AS b
"""
_PROGRESS = """
INSERT INTO pgonce.progress
    (query_id, run_id, batch_id, query_name, progress_at, num_input_rows, start_offsets, end_offsets, latest_offsets,
     durations_ms, lag)
SELECT w.query_id, w.run_id, b.batch_id, w.query_name, b.committed_at, b.rows, w.end_offsets, w.end_offsets,
       jsonb_build_object('0', (
           SELECT jsonb_object_agg(t.key, (SELECT jsonb_object_agg(p.key, p.value::bigint + m.behind)
                                           FROM jsonb_each(t.value) AS p))
           FROM jsonb_each(w.end_offsets -> '0') AS t)),
       jsonb_build_object('addBatch', 300 + 500 * random() + b.rows / 10, 'triggerExecution', 900),
       CASE WHEN m.behind > 1000 THEN 12 * m.behind ELSE 12 * m.behind * mod(b.batch_id + w.writer_id, 3) END
FROM pgonce.writers AS w
JOIN pgonce.batches AS b USING (writer_id)
CROSS JOIN LATERAL (
    SELECT CASE WHEN mod(w.writer_id, 13) = 4 THEN 2200 + 31 * w.writer_id ELSE 3 * mod(w.writer_id, 5) END AS behind
) AS m
WHERE mod(w.writer_id, 4) <> 3
"""
_HEARTBEATS = """
INSERT INTO pgonce.heartbeats (query_id, run_id, query_name, listener, started_at, heard_at, idle_since, ended_at)
SELECT w.query_id, w.run_id, w.query_name, 'driver.example pid 4711', w.created_at,
       now() - CASE mod(w.writer_id, 29) WHEN 8 THEN interval '7 minutes' ELSE interval '3 seconds' END,
       CASE WHEN mod(w.writer_id, 11) = 9 THEN w.updated_at + interval '30 seconds'
            WHEN mod(w.writer_id, 7) = 4 THEN now() - interval '40 seconds' END,
       CASE mod(w.writer_id, 31) WHEN 12 THEN now() - interval '2 seconds' END
FROM pgonce.writers AS w WHERE mod(w.writer_id, 5) <> 3
"""
_SILENT = """
WITH gone AS (
    UPDATE pgonce.writers SET updated_at = now() - interval '8 minutes' WHERE mod(writer_id, 29) = 8
    RETURNING writer_id
)
UPDATE pgonce.batches AS b SET committed_at = b.committed_at - interval '8 minutes' FROM gone
WHERE b.writer_id = gone.writer_id
"""
_FAILURES = """
INSERT INTO pgonce.failures
    (query_id, query_name, sink_name, run_id, batch_id, code, message, seen_by, attempts, first_at, last_at)
SELECT w.query_id, w.query_name, w.sink_name, w.run_id, w.last_batch_id + 1,
       (ARRAY['NOT_NULL_VIOLATION', 'TYPE_MISMATCH', 'GAP'])[mod(w.writer_id, 3) + 1],
       'Postgres refused rows of batch ' || (w.last_batch_id + 1) || ' for table ' || w.sink_name
           || ': null value in column "customer_id".',
       'commit', 3, now() - interval '190 seconds', now() - interval '1 second'
FROM pgonce.writers AS w WHERE mod(w.writer_id, 37) = 5
"""
_LETTERS = """
INSERT INTO pgonce.dead_letters
    (query_id, sink_name, batch_id, target, row_data, column_name, code, message, destination, made_at)
SELECT w.query_id, w.sink_name, w.last_batch_id, w.sink_name,
       jsonb_build_object('id', 4711 + n, 'customer', 'Åsa <b>Öberg</b>', 'amount', 12.5 * n,
                          'note', repeat('long ', 3 + n)),
       'note', CASE WHEN n < 9 THEN 'VALUE_NOT_STORABLE' ELSE 'CHECK_VIOLATION' END,
       'value too long for type character varying(20)', '{}', now() - make_interval(mins => n)
FROM pgonce.writers AS w CROSS JOIN generate_series(1, 12) AS n WHERE mod(w.writer_id, 37) = 1
"""
_REPLAYS = """
INSERT INTO pgonce.replays (writer_id, generation, batch_id, run_id, attempt, skipped_at)
SELECT b.writer_id, 0, b.batch_id, 'run before', gen_random_uuid(), b.committed_at
FROM pgonce.batches AS b WHERE mod(b.batch_id, 40) = 7 AND mod(b.writer_id, 5) = 1
"""


def fill(url: str, queries: int, *, batches: int = 100, seconds: float = 30) -> None:
    """Put ``queries`` into an empty ledger, each with so many batches, ``seconds`` apart."""
    given = {"queries": queries, "batches": batches, "seconds": seconds, "names": list(_NAMES)}
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            connection.execute("SET CONSTRAINTS ALL DEFERRED")
            connection.execute(_WRITERS, given)
            connection.execute(_BATCHES, given)
        for statement in (_PROGRESS, _HEARTBEATS, _SILENT, _FAILURES, _LETTERS, _REPLAYS):
            connection.execute(statement.encode())
        connection.execute("ANALYZE")
