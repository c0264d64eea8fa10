"""
What does the planner's worker tell the receiver that it has started, on its standard input?

Runs at both ends. Invariant: what is secret goes this way, and in no command line and no environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from pyspark.sql.types import StructType

from sink.options import SinkOptions
from sink.receiver.certificate import Identity


@dataclass(frozen=True)
class Start:
    """The first order: who it is, who may speak with it, and with whom it ends."""

    identity: Identity
    secret: bytes = field(repr=False)
    daemon_pid: int


@dataclass(frozen=True)
class Plan:
    """A batch that was planned, with the token of its commit."""

    token: UUID
    options: SinkOptions
    struct_type: StructType
