"""
Where a batch's rows go, and how: the same for every way in.

Pure: runs in the planner's worker, the commit worker and the driver. Invariant: settings that cannot work are refused
when they are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from typing_extensions import Unpack

from pgonce.offsets_store.errors import bad_option

from .definitions import (
    BY_KEY,
    TOMBSTONE_DAYS,
    ChangeFeed,
    DecodeFormat,
    KeyFormat,
    NullValues,
    OnConflict,
    SchemaEvolution,
    TableOptions,
)
from .option import Mode, Way
from .reading import Given, read, refuse_clashes

Deletes = Literal["hard", "soft", "ignore"]

DELETED_COLUMN = "pgonce_deleted"
"""The column that says which rows delete, where the frame has none of its own."""
OPERATION_COLUMN = "pgonce_operation"
"""The column that has Debezium's operation: a column of the source's own may be called ``op``, as in its events."""
BEFORE_COLUMN = "pgonce_before"
"""The column that has, as JSON, the row before an update, where it may have other keys, and the record's key."""
CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
OFFSET_COLUMN = "pgonce_offset"
"""The column that has a decoded record's offset: of a key's records in one partition, the one with the greatest is the
last."""
ORIGIN_COLUMN = "pgonce_origin"
"""The column that tells the partitions of decoded records apart: between these, offsets say nothing."""
REGISTERED = ("avro", "protobuf")
"""What cannot be read without a schema registry."""
_OF_CHANGE_TYPES = frozenset({CHANGE_TYPE, COMMIT_VERSION, "_commit_timestamp"})


@dataclass(frozen=True)
class Changes:
    """
    What makes a row of ``mode=apply`` a delete, and what a delete does.

    Either ``delete_when`` or ``feed`` is given, or ``all_delete`` says that every row deletes. ``soft_column`` is the
    column that a soft delete sets.
    """

    delete_when: str | None = None
    feed: ChangeFeed | None = None
    all_delete: bool = False
    deletes: Deletes = "hard"
    soft_column: str | None = None

    @property
    def deleted(self) -> str:
        """The boolean column that is true where a row deletes."""
        return self.delete_when or DELETED_COLUMN

    @property
    def has_versions(self) -> bool:
        """Whether changes are those of a table's versions: one that deletes a key and inserts it replaces the row."""
        return self.feed in ("delta", "spark")

    @property
    def about_changes(self) -> frozenset[str]:
        """Columns that are about the change, not of the row: they are written only if the table has them."""
        of_debezium = frozenset({OPERATION_COLUMN, BEFORE_COLUMN})
        of_feed = {"debezium": of_debezium, "delta": _OF_CHANGE_TYPES, "spark": _OF_CHANGE_TYPES}
        return of_feed.get(self.feed or "", frozenset()) | {self.deleted}


@dataclass(frozen=True)
class Existing:
    """What happens to a stored row when a row with its key comes."""

    on_conflict: OnConflict = "update"
    only_newer: bool = False
    tombstone_days: int = TOMBSTONE_DAYS
    update_columns: tuple[str, ...] = ()
    keep_where: str | None = None

    @property
    def stored_stays(self) -> bool:
        """Whether no row changes a stored one."""
        return self.on_conflict != "update"

    def reads_stored(self, *, has_order: bool) -> bool:
        """Whether rows are first compared with stored ones, or with each other, because they do more than replace."""
        return self.only_newer or self.keep_where is not None or (bool(self.update_columns) and has_order)


@dataclass(frozen=True)
class Decoding:
    """
    How the records of a topic become rows: what their values are, and where other columns come from.

    ``paths`` has a field's path for each column that is not called as its field; ``kafka`` the columns that get what
    Kafka knows of a record. ``subjects`` of the schema registry say which columns a table has that is created, or gets.
    """

    values: DecodeFormat
    key: KeyFormat | None = None
    paths: tuple[tuple[str, str], ...] = ()
    kafka: tuple[tuple[str, str], ...] = ()
    null_values: NullValues = "refuse"
    registry_url: str = field(default="", repr=False)
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Destination:
    """
    Where rows go and how: the table as the user wrote it, the write mode, and what writing by key needs.

    Without ``keys``, the table's primary key tells rows apart. ``dead_letters`` is how many rows of a batch may be put
    aside, or None. ``aside`` are columns of the rows that are about
    something else than a row of this table, such as the one that chooses among several tables. ``may_be_temporary`` is
    for a function, which may have made a table for a step in between. ``of_letters`` is for a replay of dead letters,
    whose rows may be older than stored ones of the same ``order_by``.
    """

    table: str
    mode: Mode = "append"
    keys: tuple[str, ...] = ()
    order_by: str | None = None
    create_table: bool = False
    schema_evolution: SchemaEvolution = "strict"
    changes: Changes | None = None
    existing: Existing = field(default_factory=Existing)
    dead_letters: int | None = None
    aside: frozenset[str] = frozenset()
    may_be_temporary: bool = False
    of_letters: bool = False
    decoding: Decoding | None = None

    @property
    def order_column(self) -> str | None:
        """The rows' column that ``order_by`` means; a field of Debezium's envelope becomes one of its own name."""
        if self.order_by and self.changes and self.changes.feed == "debezium":
            return self.order_by.rpartition(".")[2]
        return self.order_by

    @property
    def order_path(self) -> tuple[str, ...]:
        """Where in Debezium's envelope ``order_by`` is; empty if it is a column of the row."""
        path = tuple((self.order_by or "").split("."))
        is_of_envelope = self.order_column != self.order_by or path[0] in ("ts_ms", "ts_us", "ts_ns")
        return path if self.changes and self.changes.feed == "debezium" and is_of_envelope else ()

    @property
    def not_of_the_row(self) -> frozenset[str]:
        """
        Columns of the rows that say what is to be done with a row; a table that is created does not get them.

        With ``onlyNewer``, ``orderBy`` is compared with the stored one, and so it is a column of the row.
        """
        order = self.order_column if self.existing.only_newer else None
        of_records = frozenset({OFFSET_COLUMN, ORIGIN_COLUMN}) if self.decoding else frozenset[str]()
        return (self.aside | of_records | (self.changes.about_changes if self.changes else frozenset())) - {order}

    def is_only_if_there(self, name: str) -> bool:
        """Whether the rows' column of this name is written only if the table has it; ``orderBy`` means any case."""
        order = None if self.existing.only_newer else self.order_column
        return name in self.not_of_the_row or (order is not None and name.lower() == order.lower())


def destination(
    table: str,
    mode: str = "append",
    keys: Sequence[str] = (),
    order_by: str | None = None,
    **options: Unpack[TableOptions],
) -> Destination:
    """A checked :class:`Destination`, from the arguments of Python."""
    raw = {"table": table, "mode": mode, "keys": keys, "order_by": order_by, **options}
    return destination_of(read(raw, Way.TABLE))


def destination_of(given: Given) -> Destination:
    """A checked :class:`Destination`, for every way in."""
    table = given["table"].strip()
    if not table:
        raise bad_option("OPTION_MISSING", "No table is given.", 'Set table, for example "events" or "sales.orders".')
    refuse_clashes(given)
    mode = given["mode"]
    if mode in BY_KEY and given["create_table"] and not given["keys"]:
        raise bad_option(
            "NO_KEYS",
            f"mode={mode} with createTable needs keys, which become the new table's primary key.",
            'Set keys, for example "id" or "region,day".',
        )
    decoding = decoding_of(given)
    return Destination(
        table,
        mode,
        given["keys"],
        given["order_by"] or (OFFSET_COLUMN if decoding and mode in BY_KEY else None),
        given["create_table"],
        given["schema_evolution"],
        _changes(given) if mode == "apply" else None,
        Existing(*(given[argument] for argument in Existing.__dataclass_fields__)),
        dead_letters_of(given),
        decoding=decoding,
    )


def decoding_of(given: Given) -> Decoding | None:
    """How records become rows, as the options say; None if the frame has rows."""
    columns = given["columns"]
    if not given["decode"]:
        return None
    if columns and not isinstance(columns, Mapping):
        what = 'With decode, columns says where a column finds its field: {"customer_id": "customer.id"}.'
        raise bad_option("BAD_OPTION", what, "Leave it out where a field is called as its column is.")
    twice = set(columns) & set(given["kafka_columns"])
    bad = next((path for path in dict(columns or {}).values() if not all(path.split("."))), None)
    if twice or bad is not None:
        what = f"{min(twice)} is in columns and in kafkaColumns" if twice else f"columns has the path {bad!r}"
        raise bad_option("BAD_OPTION", f"{what}.", "Name a field, or what Kafka knows, for each column.")
    key: KeyFormat | None = given["decode_key"] or ("text" if given["mode"] == "apply" else None)
    if given["change_feed"]:
        key = given["decode_key"] or given["decode"]
    paths, kafka = (tuple(sorted(dict(found).items())) for found in (columns or {}, given["kafka_columns"]))
    if given["decode"] == "json" and (key in REGISTERED or (given["change_feed"] and given["schema_registry_url"])):
        what = (
            "decode=json cannot be used with keys that are read by a registry, or with events behind a schema's number."
        )
        raise bad_option("CLASHING_OPTIONS", what, "Set decode to what the records' values are.")
    subjects = tuple(given["schema_subjects"])
    if not subjects and (given["create_table"] or given["schema_evolution"] == "addColumns"):
        what = (
            "With decode, createTable and addColumns need schemaSubjects: the records alone do not say of which types."
        )
        remedy = (
            "Leave it out: where a table is missing, topic_to_table shows a CREATE TABLE for the first records, and "
            "where a column is, the error shows an ALTER TABLE. Or name the subjects of a schema registry."
        )
        raise bad_option("CLASHING_OPTIONS", what, remedy)
    return Decoding(given["decode"], key, paths, kafka, given["null_values"], given["schema_registry_url"], subjects)


def refuse_columns_alone(given: Given) -> None:
    """:raises ConfigurationError: CLASHING_OPTIONS, if ``columns`` stands outside ``tables`` and without ``decode``."""
    if given["columns"] and not given["decode"]:
        remedy = "Select the columns in Spark, and leave it out. (In an entry of tables, it lists columns.)"
        raise bad_option("CLASHING_OPTIONS", "columns has no effect without decode.", remedy)


def _changes(given: Given) -> Changes:
    if not (given["delete_when"] or given["change_feed"] or given["decode"]):
        raise bad_option(
            "OPTION_MISSING",
            "mode=apply needs to know which rows delete.",
            "Set deleteWhen to a boolean column of the frame, or changeFeed to debezium, delta or spark.",
        )
    kind, _, column = given["deletes"].strip().partition(":")
    if kind not in get_args(Deletes) or bool(column) != (kind == "soft"):
        raise bad_option(
            "BAD_OPTION",
            f"deletes={given['deletes']!r} is not a way to delete.",
            "Use hard, ignore, or soft: with the column to set, for example soft:deleted_at.",
        )
    return Changes(given["delete_when"], given["change_feed"], False, cast("Deletes", kind), column or None)


def dead_letters_of(given: Given) -> int | None:
    """How many rows of a batch may be put aside, as the options say; None if none may."""
    return given["max_dead_letters"] if given["dead_letters"] else None
