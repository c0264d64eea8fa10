"""
Has a person accepted a batch that could not be published by itself?

Runs in the commit and in recoveries. Invariant: an acceptance counts for one batch of one writer, once.
"""

from __future__ import annotations

from sqlalchemy import BindParameter, ColumnElement, Connection, and_, func, literal, select, update

from .tables import interventions


def is_open(writer_id: int | BindParameter[int]) -> ColumnElement[bool]:
    """The condition for the acceptances of a writer that have not been used yet."""
    return and_(
        interventions.c.writer_id == writer_id,
        interventions.c.kind == "accept",
        interventions.c.used_at.is_(None),
    )


def is_accepted_in_tx(connection: Connection, writer_id: int, batch_id: int) -> bool:
    """Whether a person has accepted this batch of this writer, and that has not been used yet."""
    standing = select(literal(1)).where(is_open(writer_id), interventions.c.batch_id == batch_id)
    return connection.execute(standing).first() is not None


def close_acceptances_in_tx(connection: Connection, writer_id: int, batch_id: int) -> None:
    """Mark what was accepted up to this batch as used: the batch is published, whether it needed that or not."""
    up_to_this = and_(is_open(writer_id), interventions.c.batch_id <= batch_id)
    connection.execute(update(interventions).where(up_to_this).values(used_at=func.clock_timestamp()))
