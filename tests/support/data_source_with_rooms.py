"""
What ``format("pgonce")`` calls in its processes, as it does: with every room.

Runs in: pytest, and the benchmarks.
"""

from __future__ import annotations

from functools import partial

from pgonce.every_room import EVERY_ROOM
from pgonce.sink.data_source import commit_parcels as committing
from pgonce.sink.data_source import planning
from pgonce.sink.data_source.receiver import launch, messages

commit_job_parcels = partial(committing.commit_job_parcels, rooms=EVERY_ROOM)
commit_parcels = partial(committing.commit_parcels, rooms=EVERY_ROOM)
plan_batch = partial(planning.plan_batch, rooms=EVERY_ROOM)
plan_job = partial(planning.plan_job, rooms=EVERY_ROOM)
planned_reception = partial(messages.PlannedReception, rooms=EVERY_ROOM)
receiver_for = partial(launch.receiver_for, rooms=EVERY_ROOM)
