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
OnConflict = Literal["update", "ignore", "ignoreAny"]
SchemaEvolution = Literal["strict", "addColumns", "ignoreExtra"]
UnknownRoutes = Literal["refuse", "drop", "deadLetters"]
"""What happens to a row whose value is not in the list: it stops the batch, is left out, or is put aside."""
OffsetsFrom = Literal["checkpoint", "listener"]
DecodeFormat = Literal["json", "avro", "protobuf"]
KeyFormat = Literal["json", "text", "avro", "protobuf"]
NullValues = Literal["refuse", "ignore"]
"""What happens to a record without a value where that is no delete: it is a bad row, or it is left out."""

BY_KEY: tuple[Mode, ...] = ("upsert", "apply")
MOST_DEAD_LETTERS = 100
"""Few, because many bad rows at once have a common cause, which should be found first."""
TOMBSTONE_DAYS = 7
"""Kafka keeps records as long by default, so nothing older comes again from there."""
# A century: with millions of days, neither Python nor Postgres could say when a delete may be forgotten.
_MOST_TOMBSTONE_DAYS = 36_500
# A millisecond: less would be zero in Postgres, and so no limit.
_LEAST_LOCK_SECONDS = 0.001
# Eleven days. Postgres and TCP count milliseconds up to 2147483647, and some waits are a little longer than this one.
_MOST_LOCK_SECONDS = 1_000_000
# Postgres's own bound: NAMEDATALEN, less the byte that ends the text.
_LONGEST_CHANNEL = 63
# Key and sink name are in one index, whose entries have at most 2,704 bytes.
_LONGEST_KEY = 1000
DEFAULT_INLINE_BYTES = 8 * 1024 * 1024
NO_RECEIVER: Literal["off"] = "off"
AUTOMATIC: Literal["auto"] = "auto"
"""The values of ``receiver`` that are not addresses."""

_SINKS = Way.STREAM | Way.JOB
_WRITERS = Way.STREAM | Way.WRITER
_QUERIES = _WRITERS | Way.FUNCTION
_STREAMS = _QUERIES | Way.REAL_TIME
_ALL = _STREAMS | Way.JOB
_ROWS = _WRITERS | Way.TABLE | Way.ENTRY
_ROWS_AND_JOBS = _ROWS | Way.JOB
_TABLES = _ROWS_AND_JOBS | Way.REAL_TIME
_ONE_JOB_EACH = (
    "Write one job for each table, with df.where(...). They may have the same batchKey, but no sinkName in common."
)
_STORED_STAYS = ("on_conflict=ignore", "on_conflict=ignoreAny")
_BY_REGISTRY = ("avro:schema_registry_url", "protobuf:schema_registry_url")
_MEND_THE_JOB = "Leave it out: a job with a bad row can be repaired and run again, and the error names the row."


# fmt: off
class TableOptions(TypedDict, total=False):
    """How rows go into a table: what ``tx.append`` and the like take."""

    delete_when: Annotated[str | None, Option(
        _ROWS_AND_JOBS, "A boolean column of the frame that is true where a row deletes. Null is refused.",
        modes=("apply",), clashes=("change_feed",),
    )]
    change_feed: Annotated[ChangeFeed | None, Option(
        _ROWS_AND_JOBS, "A feed whose rows [say what to do](change-data.md#which-rows-delete): `debezium`, `delta` or "
        "`spark`.", modes=("apply",), alike="change_feed",
    )]
    deletes: Annotated[str, Option(
        _ROWS_AND_JOBS, "`hard` removes deleted rows, `soft:<column>` [marks them](change-data.md#what-a-delete-does), "
        "`ignore` drops deletes.", "hard", modes=("apply",),
    )]
    only_newer: Annotated[bool, Option(
        _ROWS_AND_JOBS, "A stored row [gives way](change-data.md#only-what-is-newer) only to one whose `orderBy` is "
        "not less. The table must have the `orderBy` column.", False, modes=BY_KEY,
        needs=("order_by",), clashes=_STORED_STAYS,
    )]
    tombstone_days: Annotated[int, Option(
        _ROWS_AND_JOBS, "For how many days `onlyNewer` remembers a delete. An older change that comes later than that "
        "brings the row back.", TOMBSTONE_DAYS, modes=BY_KEY, least=1, most=_MOST_TOMBSTONE_DAYS,
    )]
    on_conflict: Annotated[OnConflict, Option(
        _ROWS_AND_JOBS, "`ignore` leaves a stored row with the same key as it is; of several rows of a new key, the "
        "one with the least `orderBy` is inserted. `ignoreAny` also leaves out a row that another unique or exclusion "
        "constraint refuses.", "update", modes=("upsert",),
    )]
    update_columns: Annotated[Sequence[str], Option(
        _ROWS_AND_JOBS, "The only columns that change in a stored row, separated by commas. A new row is inserted with "
        "all its columns; of several rows of a new key, the one with the least `orderBy` has those that are not "
        "listed.",
        (), "all", modes=BY_KEY, clashes=_STORED_STAYS,
    )]
    keep_where: Annotated[str | None, Option(
        _ROWS_AND_JOBS, "A text, such as `__debezium_unavailable_value`. Where a column of the frame holds it, the "
        "[stored value stays](change-data.md#values-that-the-source-could-not-read).",
        modes=BY_KEY, clashes=_STORED_STAYS, empty=True,
    )]
    create_table: Annotated[bool, Option(
        _TABLES, "Create the table from the frame's schema if it is missing.", False,
    )]
    schema_evolution: Annotated[SchemaEvolution, Option(
        _TABLES, "[Columns that the table lacks](writing.md#new-columns) are refused (`strict`), added (`addColumns`: "
        "the role must own the table) or not written (`ignoreExtra`).",
        "strict",
    )]
    dead_letters: Annotated[bool, Option(
        _ROWS, "[Put rows that cannot be written](dead-letters.md) for their own values into `pgonce.dead_letters`.",
        False, not_in_jobs=_MEND_THE_JOB,
    )]
    max_dead_letters: Annotated[int | None, Option(
        _ROWS, "How many rows of a batch may be put aside before it is refused.", MOST_DEAD_LETTERS,
        needs=("dead_letters",), least=1,
        not_in_jobs=_MEND_THE_JOB,
    )]


class QueryOptions(TypedDict, total=False):
    """How the batches of a query are identified and committed: what both ways in through ``foreachBatch`` take."""

    password_from: Annotated[str | None, Option(
        _ALL, "A function, `module:function`, that [returns the password](security.md#tokens-instead-of-passwords) "
        "for each new connection.",
    )]
    pin_table: Annotated[bool, Option(
        _STREAMS, "Refuse a batch whose table is [not the one](running.md#tables-that-people-change) that earlier "
        "batches were written to.", False,
    )]
    position_columns: Annotated[Sequence[str], Option(
        _STREAMS, "The columns that hold Kafka's topic, partition and offset, in this order. Rows that are stored "
        "already are then [dropped](guarantees.md#by-position).",
        (), clashes=("mode=complete", "offsets_from=listener"), least=3, most=3,
    )]
    bootstrap_servers: Annotated[str | None, Option(
        _QUERIES, "Kafka brokers (`host:port,...`) that are asked at each start for the ids of the topics. Nothing "
        "else notices a topic that was created again and has grown past the old end (`RECREATED`). After a run that "
        "asked, one without this option is refused. Needs `pip install 'pgonce[kafka]'`, and Kafka 2.8 or newer.",
        clashes=("offsets_from=listener",),
    )]
    kafka_options: Annotated[Mapping[str, str] | None, Option(
        _QUERIES, "How to [log in](#logging-in-to-kafka) to `bootstrapServers`; in Python a dict of these settings.",
        needs=("bootstrap_servers",), secret=True,
    )]
    notify_channel: Annotated[str | None, Option(
        _ALL, "A channel of Postgres to which each published batch [sends a "
        "`NOTIFY`](ledger.md#a-notification-for-each-batch).", most=_LONGEST_CHANNEL,
    )]
    checkpoint_location: Annotated[str | None, Option(
        _STREAMS, "The query's checkpoint. A stream needs it [on the writer itself](#sparks-own), `foreachBatch` "
        "only over [Spark Connect](clusters.md#spark-connect).", shown="required for streams",
    )]
    retain_batches: Annotated[int, Option(
        _STREAMS, "How many batch records the ledger keeps; Spark may run the last 100 again.",
        RETAINED_BATCHES, least=100, most=2**31 - 1,
    )]
    adopt_checkpoint: Annotated[int | None, Option(
        _QUERIES, "For a query that [has run with another sink](replace-your-foreachbatch.md): the first batch whose "
        "rows are not in the table yet.", clashes=("replaces", "independent"), least=0,
    )]
    replaces: Annotated[str | None, Option(
        _STREAMS, "The id of the query whose place this one takes. Batch 0 must start where that query "
        "ended, for this sink, and at 0 in a partition that was added since. The old query can no longer publish.",
        clashes=("independent",),
    )]
    independent: Annotated[bool, Option(
        _STREAMS, "`true` says that this query brings other rows than the others that feed the table, where that is "
        "not [proven](guarantees.md#the-verdicts). Remove it after the first batch.", False,
    )]
    lock_timeout: Annotated[float, Option(
        _ALL, "Seconds to wait for a lock before looking who holds it. Keep it well below `retryTimeout`.",
        LOCK_TIMEOUT_SECONDS, least=_LEAST_LOCK_SECONDS, most=_MOST_LOCK_SECONDS,
    )]
    retry_timeout: Annotated[float, Option(
        _ALL, "For how many seconds after the first temporary error (a lost connection, a deadlock, a lock) a commit, "
        "or a task that stages, may begin another try. In `foreachBatch`, the time that Spark takes to make a large "
        "batch also counts.",
        RETRY_SECONDS, least=0,
    )]


class FunctionOptions(QueryOptions, total=False):
    """What ``transactional_batch`` takes."""

    name: Required[Annotated[str, Option(
        Way.FUNCTION, "The sink's name in the ledger: keep it when the function changes.", shown="required",
    )]]


class RowOptions(TableOptions, total=False):
    """How rows go into a table, with the write mode: what ``tx.route`` takes."""

    mode: Annotated[Mode, Option(
        _ROWS_AND_JOBS, "[How rows are written](writing.md). `append` adds them. `upsert` inserts, or updates the row "
        "with the same `keys`. `apply` does what each row says: insert, update or delete. `complete` replaces all rows "
        'of the table with every batch; in a stream it needs `.outputMode("complete")`.',
        "append",
    )]
    keys: Annotated[Sequence[str], Option(
        _ROWS_AND_JOBS, "Columns that tell rows apart, separated by commas (as an argument: a list). The table needs a "
        "unique constraint or index on exactly these. `createTable` makes them the primary key.", (),
        "the table's primary key", modes=BY_KEY, creates=True,
    )]
    order_by: Annotated[str | None, Option(
        _ROWS_AND_JOBS, "Of several rows of one key in a batch, the one with the greatest value in this column wins, "
        "as the table compares them; null is the least. Without it, doubled keys are refused. With "
        "`changeFeed=debezium` it may be a field of the envelope, such as `source.lsn`.",
        modes=BY_KEY, alike="change_feed",
    )]
    unknown_routes: Annotated[UnknownRoutes | None, Option(
        _WRITERS, "Rows whose value is not in `tables`, or null, stop the batch (`refuse`), are left out and "
        "counted (`drop`), or put aside (`deadLetters`).", "refuse",
        needs=("route", "deadLetters:dead_letters"), not_in_jobs=_ONE_JOB_EACH,
    )]


class RouteOptions(RowOptions, total=False):
    """Where rows go and how: into one table, or each row into the one that its value chooses."""

    table: Annotated[str, Option(
        _TABLES, 'Target table as SQL names it: `events`, `sales.orders`, `app."Orders"`. Unqualified names are '
        "found along the role's `search_path`.", "", "required, or `route`", clashes=("route",),
    )]
    route: Annotated[str | None, Option(
        _WRITERS, "In place of `table`: the column whose value [chooses among "
        "`tables`](writing.md#one-stream-many-tables).",
        not_in_jobs=_ONE_JOB_EACH,
    )]
    tables: Annotated[Mapping[str, Mapping[str, Any]] | str | None, Option(
        _WRITERS, 'For each value of `route`, how its table is written: `{"orders": {"table": "sales.orders", "mode": '
        '"upsert", "keys": ["id"]}}`, as JSON (as an argument: a dict). An entry may have the options that are marked '
        "T, in either spelling.", None, "required with `route`", needs=("route",),
        not_in_jobs=_ONE_JOB_EACH,
    )]
    columns: Annotated[Sequence[str] | Mapping[str, str], Option(
        _WRITERS | Way.JOB | Way.ENTRY, "With `decode`: for columns that are not called as their field is, the "
        "[field's path](kafka-json.md#names): `{\"customer_id\": \"customer.id\"}`. In an entry of `tables`: a list "
        "of the only columns of its rows that are written.", (), "all",
    )]


class WriterOptions(QueryOptions, RouteOptions, total=False):
    """What ``PostgresBatchWriter`` takes."""

    sink_name: Annotated[str | None, Option(
        _WRITERS | Way.JOB | Way.REAL_TIME, "Tells writers of one query apart. Changing it makes a new writer.", None,
        'the qualified table (`public.events`, `app."Orders"`), or `route:<column>`',
    )]
    write_positions: Annotated[bool, Option(
        _WRITERS | Way.REAL_TIME, "Whether the position columns are also written to the table.", True,
        needs=("position_columns",),
    )]
    decode: Annotated[DecodeFormat | None, Option(
        _WRITERS | Way.JOB, "The frame is Spark's Kafka source as it comes: the [values of its records are "
        "read](kafka-json.md) by the types of the table's columns.", needs=_BY_REGISTRY, clashes=(
            "route", "change_feed=delta", "change_feed=spark", "position_columns", "mode=complete",
            "offsets_from=listener",
        ),
    )]
    schema_registry_url: Annotated[str, Option(
        _WRITERS | Way.JOB, "The address of the [schema registry](how-to/schema-registries.md), and settings of its "
        "client: `https://user:password@registry:8081?ssl.ca.location=/etc/ca.pem`.", "", "none",
        needs=("decode",), secret=True,
    )]
    schema_subjects: Annotated[Sequence[str], Option(
        _WRITERS | Way.JOB, "The registry's subjects whose schemas say which columns the table has, for `createTable` "
        "and `addColumns`: `orders-value`.", (), "none", needs=("schema_registry_url",),
    )]
    decode_key: Annotated[KeyFormat | None, Option(
        _WRITERS | Way.JOB, "How a record's key is read for the columns in `keys` that its value lacks: as a JSON "
        "object, as the text of a single one, or by its schema.", None, "`text` with `mode=apply`, and what `decode` "
        "says with `changeFeed`", needs=("decode", *_BY_REGISTRY), modes=BY_KEY,
    )]
    kafka_columns: Annotated[Mapping[str, str], Option(
        _WRITERS | Way.JOB, "Columns that get what [Kafka knows](kafka-json.md#columns-of-kafkas-own) of a record: "
        '`{"sent_at": "timestamp", "trace": "headers.trace"}`.', {}, "none", needs=("decode",),
    )]
    null_values: Annotated[NullValues, Option(
        _WRITERS | Way.JOB, "A record without a value is a bad row, or with `mode=apply` a delete by its key "
        "(`refuse`); or it is left out (`ignore`).", "refuse", needs=("decode",),
    )]


class SparkOptions(WriterOptions, total=False):
    """What only ``format("pgonce")`` takes, and the connection string, which comes first in Python."""

    url: Annotated[str, Option(
        _ALL, "A libpq URI or `key=value` string. Empty: libpq's environment (`PGHOST`, `PGSERVICE`, ...).", "",
        "empty", secret=True,
    )]
    executor_url: Annotated[str, Option(
        _SINKS | Way.REAL_TIME, "How tasks that stage rows reach Postgres, [if not by "
        "`url`](clusters.md#when-executors-reach-postgres-another-way).", None, "`url`", empty=True, secret=True,
    )]
    query_name: Annotated[str, Option(
        Way.STREAM | Way.REAL_TIME, "Spark's name of the query, which `pgonce` also uses.",
    )]
    inline_bytes: Annotated[int, Option(
        _SINKS, "How many bytes a task may send in its commit message (less from the ninth partition on); beyond that "
        "it stages its rows in a table. A task with more than `1048576` sends them to the `receiver` instead, if it "
        "reaches one.",
        DEFAULT_INLINE_BYTES, least=0,
    )]
    receiver: Annotated[Literal["off", "auto"] | str, Option(  # noqa: PYI051 (these two are read in any case)
        Way.STREAM, "Large partitions go to a process on the driver, [encrypted](security.md#the-receiver), instead of "
        "being staged. `auto`: executors [find it](clusters.md#when-executors-reach-the-driver); `off`: there is none; "
        "any other text is the address to listen at.",
        AUTOMATIC,
    )]
    offsets_from: Annotated[OffsetsFrom, Option(
        Way.STREAM, "`listener` is for checkpoints that only Spark can read, and is "
        "[weaker](running.md#when-only-spark-can-read-the-checkpoint).", "checkpoint",
    )]
    batch_key: Annotated[str, Option(
        Way.JOB, "Names the input of the run. The same key again is skipped.", shown="required",
        most=_LONGEST_KEY,
    )]
    batch_hash: Annotated[bool, Option(
        Way.JOB, "Refuse the same key with other rows, instead of skipping it: the rows are hashed.", False,
    )]


class RealTimeOptions(TypedDict, total=False):
    """What ``start_real_time`` takes: some of the options above, as keyword arguments."""

    table: Required[str]
    checkpoint_location: Required[str]
    query_name: str
    sink_name: str | None
    position_columns: Sequence[str]
    write_positions: bool
    create_table: bool
    schema_evolution: SchemaEvolution
    pin_table: bool
    replaces: str | None
    independent: bool
    executor_url: str
    password_from: str | None
    notify_channel: str | None
    retain_batches: int
    lock_timeout: float
    retry_timeout: float


# fmt: on
OPTIONS: dict[str, Option] = collected(SparkOptions, FunctionOptions)
"""Every option by its argument."""
