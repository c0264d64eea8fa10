"""
``foreachBatch`` made exactly-once, for one table, or for several among which each row chooses.

Runs on the driver, in the thread that calls the function. Invariant: the batch's identity and offsets come from the
running query itself, never from what the caller passes or the function remembers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote
from typing_extensions import Unpack

from pgonce.offsets_store.commit.settings import LOCK_TIMEOUT_SECONDS, RETAINED_BATCHES
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.postgres.backoff import RETRY_SECONDS
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl
from pgonce.offsets_store.postgres.text import refuse_unstorable
from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..border import called_by_spark
from ..changes.reader import reader_of
from ..encoding.encoded_types import encoded_columns
from ..options.destination import Mode, TableOptions, refuse_unfit_positions
from ..options.hints import only_known_arguments
from ..options.position_columns import written_type
from ..options.route_options import where_to
from ..options.routes import UnknownRoutes
from ..options.values import AS_ARGUMENTS, starts_over
from ..writing.first_batch import refuse_first_batch
from ..writing.first_look import look_once, look_when_made
from ..writing.rows import Rows
from ..writing.write_batch import work_into
from .batch_settings import batch_settings
from .early_commit import EarlyCommits
from .frame_commits import FrameCommits
from .frame_rows import arriving_rows


class PostgresBatchWriter:
    """
    Writes every batch into one table: ``df.writeStream.foreachBatch(PostgresBatchWriter(url, table="events"))``.

    With ``route`` and ``tables`` it writes each row into the table that its value chooses.

    :param url: a libpq URI or key=value string; empty for libpq's environment.
    :param password_from: ``module:function`` that returns the password for each new connection, a token for example.
    :param table: target table, as SQL names it (``events``, ``sales.orders``, ``app."Orders"``).
    :param route: instead of ``table``, the column whose value chooses among ``tables``.
    :param tables: for each value, how its table is written: a dict of ``table`` (by default the value), ``mode``,
        ``keys`` and the like, and ``columns``. What stands beside it counts for all. They are written in this order.
    :param unknown_routes: what becomes of rows with other values: ``refuse``, the default; ``drop``; ``deadLetters``.
    :param mode: ``append``; ``upsert`` by ``keys``; ``apply`` changes, deletes among them, by ``keys``; ``complete``
        replaces the table's rows with every batch.
    :param keys: columns that tell rows apart, by default the table's primary key; with ``create_table`` they become it.
    :param order_by: if a batch has a key twice, the row with the greatest value in this column wins.
    :param sink_name: tells two writers of one query apart; the qualified table by default.
    :param pin_table: refuse a batch whose table is not the one of the batches before (dropped and created again,
        exchanged, renamed), instead of noting that.
    :param position_columns: the columns that hold Kafka's topic, partition and offset, in this order. A batch that
        overlaps what is stored is then not an error, because rows that are stored already are dropped.
    :param write_positions: whether these columns are also written to the table.
    :param bootstrap_servers: Kafka brokers (host:port,...) to ask at each start whether a topic was created again.
    :param kafka_options: how to log in to them, as Spark's source is told (``kafka.security.protocol`` and the like).
    :param notify_channel: the channel of Postgres on which each committed batch is told, in its transaction.
    :param checkpoint_location: the query's own, which is read over Spark Connect; a classic session asks the query.
    :param retain_batches: how many batch records the ledger keeps, at least 100.
    :param adopt_checkpoint: for a query that has run with another sink, the id of the first batch to publish.
    :param replaces: id or name of the query whose place this one takes; the beginning of the id is enough.
    :param start_over: ``truncate`` if batch 0 of a new query is to delete the rows of the query that it ``replaces``.
    :param independent: this query has nothing to do with others that feed the table.
    :param lock_timeout: seconds to wait for a lock before looking who holds it.
    :param retry_timeout: seconds to keep trying after temporary errors.
    :param how: what else is to be said of the table: :class:`~pgonce.sink.options.destination.TableOptions`.
    :raises ConfigurationError: at once, for arguments that cannot work.
    :raises TargetError: at once, for a table that is missing or cannot be written into, if the database can be reached.
        A client of Spark Connect leaves it to the first batch.
    """

    @only_known_arguments
    def __init__(
        self,
        url: str = "",
        *,
        password_from: str | None = None,
        table: str = "",
        route: str | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        unknown_routes: UnknownRoutes | None = None,
        mode: Mode = "append",
        keys: Sequence[str] = (),
        order_by: str | None = None,
        sink_name: str | None = None,
        pin_table: bool = False,
        position_columns: Sequence[str] = (),
        write_positions: bool = True,
        bootstrap_servers: str | None = None,
        kafka_options: Mapping[str, str] | None = None,
        notify_channel: str | None = None,
        checkpoint_location: str | None = None,
        retain_batches: int = RETAINED_BATCHES,
        adopt_checkpoint: int | None = None,
        replaces: str | None = None,
        start_over: Literal["truncate"] | None = None,
        independent: bool = False,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
        retry_timeout: float = RETRY_SECONDS,
        **how: Unpack[TableOptions],
    ) -> None:
        self._settings = batch_settings(
            url,
            password_from=password_from,
            pin_table=pin_table,
            positions=position_columns,
            write_positions=write_positions,
            bootstrap_servers=bootstrap_servers,
            kafka_options=kafka_options,
            notify_channel=notify_channel,
            checkpoint_location=checkpoint_location,
            retain_batches=retain_batches,
            adopt_checkpoint=adopt_checkpoint,
            replaces=replaces,
            start_over=starts_over(
                start_over,
                replaces,
                PostgresUrl(url, password_from),
                table=table,
                sink_name=sink_name,
                spelled=AS_ARGUMENTS,
            ),
            independent=independent,
            lock_timeout=lock_timeout,
            retry_timeout=retry_timeout,
        )
        self._commits: FrameCommits = EarlyCommits(self._settings.commit)
        self._destination = where_to(
            table,
            route,
            tables,
            unknown_routes,
            mode,
            keys,
            order_by,
            start_over=start_over is not None,
            **how,
        )
        refuse_unstorable(sink_name=sink_name)
        self._sink_name = sink_name
        if self._settings.positions:
            refuse_unfit_positions(mode)
        # A client of a Connect server may have another database by this url, or none.
        if checkpoint_location is None and not is_remote():
            look_when_made(self._settings.commit.url, self._destination)

    @called_by_spark
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Publish one batch, or skip it if it is proven to be published already; foreachBatch calls this."""
        batch = self._settings.batch_of(frame, batch_id)
        self._look_first(batch, frame)
        # The frame is run to its end even for a replay: a stateful query fails if its frame is not run.
        with arriving_rows(frame, self._destination, self._settings.positions, batch) as (rows, arriving):
            self._commits.commit(batch, rows, arriving, lambda each: self._settings.checked(frame, self._work(each)))
            rows.count()

    def _look_first(self, batch: PlannedBatch, frame: DataFrame) -> None:
        positions = self._settings.positions
        if positions:
            positions.check(frame.schema)
        written = written_type(reader_of(self._destination, frame.schema).struct_type, positions, self._destination)
        look_once(batch.run_id, self._settings.commit.url, self._destination, encoded_columns(written))
        refuse_first_batch(self._settings.commit, batch, self._sink_name, self._destination)

    def _work(self, rows: Rows) -> Work:
        return work_into(self._sink_name, self._destination, rows)
