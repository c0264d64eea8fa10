"""
The table of options: every option of every way in, and all that is known of it.

Pure: runs where settings are made. Invariant: an option is one entry here. Its two spellings, what it accepts, the
clashes, the hints, the docstrings of the ways in and docs/options.md follow from the entry.

The table is written as the keyword arguments of Python, so that mypy and editors read it too. ``keep_where`` here is
the option ``keepWhere``; its type says what it accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from typing_extensions import Required

from pgonce.offsets_store.commit.settings import LOCK_TIMEOUT_SECONDS, RETAINED_BATCHES, RETRY_SECONDS

from .option import Mode, Option, Way, collected

ChangeFeed = Literal["debezium", "delta", "spark"]
"""Feeds whose rows say by themselves what to do: Debezium's envelope, and ``_change_type`` of Delta and Spark."""
OnConflict = Literal["update", "ignore"]
SchemaEvolution = Literal["strict", "addColumns", "ignoreExtra"]
UnknownRoutes = Literal["refuse", "drop", "deadLetters"]
"""What happens to a row whose value is not in the list: it stops the batch, is left out, or is put aside."""
OffsetsFrom = Literal["checkpoint", "listener"]

BY_KEY: tuple[Mode, ...] = ("upsert", "apply")
DEAD_LETTERS = "pgonce.dead_letters"
MOST_DEAD_LETTERS = 100
"""Few, because many bad rows at once have a common cause, which should be found first."""
TOMBSTONE_DAYS = 7
"""Kafka keeps records as long by default, so nothing older comes again from there."""
MOST_TOMBSTONE_DAYS = 36_500
"""A century: with millions of days, neither Python nor Postgres could say when a delete may be forgotten."""
DEFAULT_INLINE_BYTES = 8 * 1024 * 1024
NO_RECEIVER: Literal["off"] = "off"
AUTOMATIC: Literal["auto"] = "auto"
"""The values of ``receiver`` that are not addresses."""

_SINKS = Way.STREAM | Way.JOB
_WRITERS = Way.STREAM | Way.WRITER
_QUERIES = _WRITERS | Way.FUNCTION
_ALL = _QUERIES | Way.JOB
_ROWS = _WRITERS | Way.TABLE | Way.ENTRY
_ROWS_AND_JOBS = _ROWS | Way.JOB
_ONE_JOB_EACH = "Write one job for each table, with df.where(...) and the same batchKey."
_MEND_THE_JOB = "Leave it out: a job with a bad row can be repaired and run again, and the error names the row."


# fmt: off
class TableOptions(TypedDict, total=False):
    """How rows go into a table: what ``tx.append`` and the like take."""

    delete_when: Annotated[str | None, Option(
        _ROWS_AND_JOBS, "A boolean column of the frame that is true where a row deletes. Null is refused. The column "
        "is written only if the table has one of its name.", modes=("apply",), clashes=("change_feed",),
    )]
    change_feed: Annotated[ChangeFeed | None, Option(
        _ROWS_AND_JOBS, "A feed whose rows say what to do: `debezium`, `delta` or `spark`, in place of `deleteWhen`. "
        "See [Which rows delete](change-data.md#which-rows-delete).", modes=("apply",),
    )]
    deletes: Annotated[str, Option(
        _ROWS_AND_JOBS, "What a delete does. `hard` removes the row. `soft:<column>` sets this column of the table: a "
        "boolean to true, a timestamp to the time of the transaction; a later write of the key sets it back to false "
        "or null. `ignore` drops deletes.", "hard", modes=("apply",),
    )]
    only_newer: Annotated[bool, Option(
        _ROWS_AND_JOBS, "A stored row gives way only to one whose `orderBy` is not less. What was passed over is "
        "counted. The table must have the `orderBy` column; a null in a row is refused, a null in the table is older "
        "than everything.", False, modes=BY_KEY, needs="order_by", clashes=("on_conflict=ignore",),
    )]
    tombstone_days: Annotated[int, Option(
        _ROWS_AND_JOBS, f"For how many days (1 to {MOST_TOMBSTONE_DAYS}) the ledger remembers a delete with "
        "`onlyNewer`, so that an older change of the key that comes later does not bring the row back.",
        TOMBSTONE_DAYS, modes=BY_KEY, least=1, most=MOST_TOMBSTONE_DAYS,
    )]
    on_conflict: Annotated[OnConflict, Option(
        _ROWS_AND_JOBS, "What becomes of a stored row with the same key. `ignore` leaves it as it is; of several rows "
        "of a new key, the one with the least `orderBy` is inserted.", "update", modes=("upsert",),
    )]
    update_columns: Annotated[Sequence[str], Option(
        _ROWS_AND_JOBS, "The only columns that change in a stored row, separated by commas. A row that is not in the "
        "table yet is inserted with all its columns; if a batch has several rows of its key, the columns that are not "
        "listed come from the one with the least `orderBy`. The column of a soft delete changes in any case.",
        (), "all", modes=BY_KEY, clashes=("on_conflict=ignore",),
    )]
    keep_where: Annotated[str | None, Option(
        _ROWS_AND_JOBS, 'A text that stands for "the source could not read this value", such as '
        "`__debezium_unavailable_value`. Where a column of the frame holds it, the stored value stays; see [Values "
        "that the source could not read](change-data.md#values-that-the-source-could-not-read).",
        modes=BY_KEY, clashes=("on_conflict=ignore",), empty=True,
    )]
    create_table: Annotated[bool, Option(
        _ROWS_AND_JOBS, "Create the table from the frame's schema if it is missing.", False,
    )]
    schema_evolution: Annotated[SchemaEvolution, Option(
        _ROWS_AND_JOBS, "What becomes of columns that the table lacks. `strict` refuses them, `addColumns` adds them "
        "(the role must own the table), `ignoreExtra` does not write them. See [New columns](writing.md#new-columns).",
        "strict",
    )]
    dead_letters: Annotated[str | bool | None, Option(
        _ROWS, f"Where rows go that cannot be written for their own values, instead of stopping the query: `true` for "
        f"the ledger's table `{DEAD_LETTERS}`, or a table of your own with the same columns. See [Dead "
        "letters](dead-letters.md).", empty=True,
        not_in_jobs=_MEND_THE_JOB,
    )]
    max_dead_letters: Annotated[int | None, Option(
        _ROWS, "How many rows of a batch may be put aside. A batch with more is refused.", MOST_DEAD_LETTERS,
        needs="dead_letters", least=1,
        not_in_jobs=_MEND_THE_JOB,
    )]


class QueryOptions(TypedDict, total=False):
    """How the batches of a query are identified and committed: what both ways in through ``foreachBatch`` take."""

    password_from: Annotated[str | None, Option(
        _ALL, "A function, `module:function`, that is called for each new connection and returns the password: "
        "`pgonce.tokens:aws_rds`, `azure`, `google` or `databricks`, or one of your own. See [Tokens instead of "
        "passwords](security.md#tokens-instead-of-passwords).",
    )]
    pin_table: Annotated[bool, Option(
        _QUERIES, "Refuse a batch whose table is not the one that earlier batches were written to ([what is "
        "noticed](running.md#tables-that-people-change)). Without it, such a change is only reported, in the log "
        "and in `pgonce status`.", False,
    )]
    position_columns: Annotated[Sequence[str], Option(
        _QUERIES, "The columns that hold Kafka's topic, partition and offset, in this order. A batch that overlaps "
        "what is stored is then not an error: rows that are stored already are dropped, and counted. For stateless "
        "queries over one Kafka source. See [By position](guarantees.md#by-position).",
        (), clashes=("mode=complete", "offsets_from=listener"),
    )]
    bootstrap_servers: Annotated[str | None, Option(
        _QUERIES, "Kafka brokers (`host:port,...`) that are asked at each start for the ids of the topics, which the "
        "ledger keeps. So a topic that was deleted and created again, and has already grown past the old end, is "
        "refused (`RECREATED`); nothing else would notice it. Needs `pip install 'pgonce[kafka]'`.",
    )]
    kafka_options: Annotated[Mapping[str, str] | None, Option(
        _QUERIES, "How to log in to `bootstrapServers`: Kafka's settings as Spark's source has them, such as "
        "`kafka.security.protocol`, each an option of its own; in Python a dict of them. See [Logging in to "
        "Kafka](#logging-in-to-kafka).", secret=True,
    )]
    notify_channel: Annotated[str | None, Option(
        _ALL, "A channel of Postgres: each published batch sends a `NOTIFY` there, in its own transaction. See [A "
        "notification for each batch](ledger.md#a-notification-for-each-batch).",
    )]
    checkpoint_location: Annotated[str | None, Option(
        _QUERIES, "The query's checkpoint. A stream needs it [on the writer itself](#sparks-own); the ways in through "
        "`foreachBatch` only need it over [Spark Connect](clusters.md#spark-connect).", shown="required for streams",
    )]
    retain_batches: Annotated[int, Option(
        _QUERIES, "How many batch records the ledger keeps; at least 100.", RETAINED_BATCHES,
    )]
    adopt_checkpoint: Annotated[int | None, Option(
        _QUERIES, "For a query that has run with another sink: the id of the first batch whose rows are not in the "
        "table yet. See [Replace your foreachBatch](replace-your-foreachbatch.md).", least=0,
    )]
    replaces: Annotated[str | None, Option(
        _QUERIES, "The query whose place this one takes: its id, the beginning of its id (at least four characters), "
        "or its name. If it fits several queries that have fed this sink, the batch is refused "
        "(`QUERY_AMBIGUOUS`). Its batch 0 must start where that query ended, for this sink. The old query can no "
        "longer publish.",
    )]
    independent: Annotated[bool | Literal["byName"], Option(
        _QUERIES, "`true` says that this query brings other rows than the others that feed the table. Needed for a "
        "second query of a table, unless both are [proven to read different places](guarantees.md#the-verdicts). "
        "`byName` says this only of queries with another name: if this query loses its checkpoint, or its "
        "[pipeline](clusters.md#declarative-pipelines) is refreshed, its first batch is still refused.", False,
    )]
    lock_timeout: Annotated[float, Option(
        _ALL, "Seconds to wait for a lock before looking who holds it. Keep it well below `retryTimeout`: only the "
        "second wait reports who holds the lock.", LOCK_TIMEOUT_SECONDS,
    )]
    retry_timeout: Annotated[float, Option(
        _ALL, "For how many seconds after the first temporary error (a lost connection, a deadlock, a lock) a commit, "
        "or a task that stages, may begin another try. (In `foreachBatch`, the time that Spark takes to make a large "
        "batch also counts.) See [When Postgres is unavailable](failures.md#when-postgres-is-unavailable). "
        "`recover_and_start` and `recover_checkpoint` have it too.", RETRY_SECONDS,
    )]


class FunctionOptions(QueryOptions, total=False):
    """What ``transactional_batch`` takes."""

    name: Required[Annotated[str, Option(
        Way.FUNCTION, "The sink's name in the ledger: keep it when the function changes.", shown="required",
    )]]


class RowOptions(TableOptions, total=False):
    """How rows go into a table, with the write mode: what ``tx.route`` takes."""

    mode: Annotated[Mode, Option(
        _ROWS_AND_JOBS, "`append` adds rows. `upsert` inserts, or updates the row with the same `keys`. `apply` does "
        "what each row says: insert, update or delete ([Writing](writing.md)). `complete` replaces all rows of the "
        'table with every batch; as an option of a stream it needs Spark\'s `.outputMode("complete")`, and then it is '
        "the default.", "append",
    )]
    keys: Annotated[Sequence[str], Option(
        _ROWS_AND_JOBS, "Columns that tell rows apart, separated by commas (as an argument: a list). The table needs a "
        "unique constraint or index on exactly these columns. With `createTable` they must be given, and become the "
        "primary key.", (), "the table's primary key", modes=BY_KEY, creates=True,
    )]
    order_by: Annotated[str | None, Option(
        _ROWS_AND_JOBS, "Of several rows of one key in a batch, the one with the greatest value in this column wins; "
        "null is the least. Without it, doubled keys are refused. The table decides which keys are equal and which "
        "value is greater (`char(n)`, collations, `citext`). A table that lacks the column does not get it. With "
        "`changeFeed=debezium` it may be a field of the envelope, such as `source.lsn`.",
        modes=BY_KEY,
    )]
    unknown_routes: Annotated[UnknownRoutes | None, Option(
        _WRITERS, "What becomes of rows whose value is not in `tables`, or null: `refuse` stops the batch, `drop` "
        "leaves them out and counts them, `deadLetters` puts them aside (needs `deadLetters`).", "refuse",
        needs="route", not_in_jobs=_ONE_JOB_EACH,
    )]


class RouteOptions(RowOptions, total=False):
    """Where rows go and how: into one table, or each row into the one that its value chooses."""

    table: Annotated[str, Option(
        _ROWS_AND_JOBS, 'Target table as SQL names it: `events`, `sales.orders`, `app."Orders"`. Unqualified names are '
        "found along the role's `search_path`.", "", "required, or `route`", clashes=("route",),
    )]
    route: Annotated[str | None, Option(
        _WRITERS, "In place of `table`: the column whose value chooses among `tables`. See [One stream, many "
        "tables](writing.md#one-stream-many-tables).", clashes=("start_over=truncate",),
        not_in_jobs=_ONE_JOB_EACH,
    )]
    tables: Annotated[Mapping[str, Mapping[str, Any]] | str | None, Option(
        _WRITERS, 'For each value of `route`, how its table is written: `{"orders": {"table": "sales.orders", "mode": '
        '"upsert", "keys": ["id"]}}`, as JSON (as an argument: a dict). An entry may have the options that are marked '
        "T, in either spelling.", None, "required with `route`", needs="route",
        not_in_jobs=_ONE_JOB_EACH,
    )]
    columns: Annotated[Sequence[str], Option(
        Way.ENTRY, "In an entry of `tables`: the only columns of its rows that are written.", (), "all",
    )]


class WriterOptions(QueryOptions, RouteOptions, total=False):
    """What ``PostgresBatchWriter`` takes."""

    sink_name: Annotated[str | None, Option(
        _WRITERS | Way.JOB, "Tells several writers of one query apart. Changing it makes a new writer.", None,
        'the qualified table (`public.events`, `app."Orders"`), or `route:<column>`',
    )]
    write_positions: Annotated[bool, Option(
        _WRITERS, "Whether the position columns are also written to the table.", True, needs="position_columns",
    )]
    start_over: Annotated[Literal["off", "truncate"] | None, Option(
        _WRITERS, "`truncate`, with `replaces`: batch 0 of a new query deletes all rows of the table, and writes its "
        "own, in one transaction. It need not start where the old query ended. Nothing later deletes. See [Starting "
        "over](recovering.md#in-place-startovertruncate).", "off",
    )]


class SparkOptions(WriterOptions, total=False):
    """What only ``format("pgonce")`` takes, and the connection string, which comes first in Python."""

    url: Annotated[str, Option(
        _ALL, "A libpq URI or `key=value` string. Empty: libpq's environment (`PGHOST`, `PGSERVICE`, ...).", "",
        "empty", secret=True,
    )]
    executor_url: Annotated[str, Option(
        _SINKS, "How tasks reach Postgres when they stage rows, if the driver's way does not work there. See "
        "[Clusters](clusters.md#when-executors-reach-postgres-another-way).", None, "`url`", empty=True, secret=True,
    )]
    query_name: Annotated[str, Option(
        Way.STREAM, "Spark's own name of the query: `pgonce status` and every message call the query by it.",
    )]
    inline_bytes: Annotated[int, Option(
        _SINKS, "How many bytes the task of a partition may send in its commit message; beyond that it stages its rows "
        "in a table. `0` stages everything. The first 8 partitions have the full amount, the next 8 a quarter, the "
        "next a ninth, and so on, but each at least 4 kB. A task with more than `1048576` "
        "sends them to the `receiver` instead, if it reaches one.",
        DEFAULT_INLINE_BYTES, least=0,
    )]
    receiver: Annotated[Literal["off", "auto"] | str, Option(  # noqa: PYI051 (these two are read in any case)
        Way.STREAM, "Tasks with more rows than fit into commit messages send them to a process on the driver, which "
        "copies them while tasks still run, instead of staging them: [faster](performance.md) for large batches. With "
        "`auto`, executors [find it](clusters.md#when-executors-reach-the-driver) on the driver's host, or at the "
        "addresses of Spark's driver; any other text is the address to listen at. Rows cross the network "
        "[encrypted](security.md#the-receiver). What a task cannot send there, it stages; a receiver that is lost "
        "[costs no query](failures.md#a-receiver-that-is-killed-or-frozen-or-has-no-room). `PGONCE_RECEIVER=off` in "
        "the driver's environment is `off` for all its queries. With `positionColumns` there is none.", AUTOMATIC,
    )]
    offsets_from: Annotated[OffsetsFrom, Option(
        Way.STREAM, "Where offsets come from. `listener` is for checkpoints that only Spark can read, and is "
        "[weaker](running.md#when-only-spark-can-read-the-checkpoint).", "checkpoint",
    )]
    batch_key: Annotated[str, Option(
        Way.JOB, "Names the input of the run, in at most 250 characters. The same key again, for the same sink, is "
        "skipped and counted.", shown="required",
    )]
    batch_hash: Annotated[bool, Option(
        Way.JOB, "Hash the rows and record the hash with the key. The same key with other rows is then refused, "
        "instead of skipped.", False,
    )]


# fmt: on
OPTIONS: dict[str, Option] = collected(SparkOptions, FunctionOptions)
"""Every option by its argument."""
