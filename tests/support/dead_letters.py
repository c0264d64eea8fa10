"""Dead letters in the ledger, as a batch leaves them when it puts rows aside; and what a replay makes of them."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb
from pyspark.sql import types as t
from support.committed_rows import STRUCT
from support.ledger_history import KAFKA, QUERY, publish

from pgonce.dead_letters.chosen_letters import chosen_letters
from pgonce.dead_letters.replay import Group, replay_letters
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import Destination, destination
from pgonce.sink.writing.recorded_destination import recorded

EVENTS = destination("public.events")


def put_aside(
    admin: Any,
    row: dict[str, Any],
    where: Destination | None = EVENTS,
    struct: t.StructType = STRUCT,
    *,
    days_ago: float = 0,
    **fields: Any,
) -> int:
    """Insert one letter of batch 3 of the query ``orders``; its id. Without ``where`` its destination is unknown."""
    known = {
        "query_id": QUERY,
        "sink_name": "public.orders",
        "batch_id": 3,
        "target": where.table if where else "nowhere",
        "position": Jsonb({"topic": "t", "partition": 0, "offset": 7}),
        "row_data": Jsonb(row),
        "column_name": "name",
        "code": "22001",
        "message": "value too long for type character varying(5)",
        "destination": Jsonb(recorded(where, encoded_columns(struct)) if where else {}),
        **fields,
    }
    names, places = ", ".join(known), ", ".join(f"%({name})s" for name in known)
    insert = (
        f"INSERT INTO pgonce.dead_letters ({names}, made_at) VALUES ({places}, now() - %(days)s * interval '1 day') "
        "RETURNING dead_letter_id"
    )
    return admin.execute(insert.encode(), {**known, "days": days_ago}).fetchone()[0]


def letters(admin: Any) -> list[int]:
    """The ids of the letters that are there, in order."""
    return [row[0] for row in admin.execute("SELECT dead_letter_id FROM pgonce.dead_letters ORDER BY 1").fetchall()]


def a_past(url: str, **identity: Any) -> None:
    """The query ``orders`` has published batch 3."""
    publish(url, 3, KAFKA, **identity)


def replayed(url: str, query: str = "orders", sink: str | None = None, **how: Any) -> list[Group]:
    """Replay the letters of a query."""
    chosen = {name: how.pop(name) for name in ("ids", "code") if name in how}
    return replay_letters(chosen_letters(url, query, sink, **chosen), url, **how)


def by_key(mode: str = "upsert", **options: Any) -> Destination:
    """Rows of ``events`` are written by their key."""
    given = {"order_by": "seq", **options} if options.get("only_newer") else options
    return destination("public.events", mode, ["id"], **given)
