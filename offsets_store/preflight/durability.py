"""
Does the server keep what it has committed?

Runs in the command ``pgonce check``. Invariant: it only looks.
"""

from __future__ import annotations

import re

import psycopg

from .answers import Answer, Holds, Question, one_row
from .server import storage_of_its_own

# Postgres counts a standby only while it is sync or quorum: one that is potential is still catching up, or is there
# beyond the number.
_STANDBYS = """
SELECT pg_catalog.current_setting('synchronous_standby_names'),
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
"""

# Source: syncrep_gram.y of Postgres. A list without a number is one by priority, and what stands in quotes is a name.
_NUMBER = re.compile(r"\s*(?:(?:first|any)\s+)?(\d+)\s*\(", re.IGNORECASE)


def demanded_standbys(names: str) -> int:
    """For how many standbys COMMIT waits, by the value of synchronous_standby_names."""
    if not names:
        return 0
    number = _NUMBER.match(names)
    return int(number[1]) if number else 1


def _setting(connection: psycopg.Connection, name: str) -> str:
    return str(one_row(connection, "SELECT pg_catalog.current_setting(%s)", name)[0])


def _synchronous_commit(connection: psycopg.Connection) -> Answer:
    value = _setting(connection, "synchronous_commit")
    if value == "off":
        return Answer(
            Holds.NO,
            "synchronous_commit is off for this role: COMMIT is answered before the rows are on disk, and every batch "
            "is refused",
            "Set it to on (or local) for this role or database, or in url: options=-csynchronous_commit=on.",
        )
    return Answer(Holds.YES, f"synchronous_commit is {value}")


def _disk(connection: psycopg.Connection) -> Answer:
    off = [name for name in ("fsync", "full_page_writes") if _setting(connection, name) == "off"]
    if not off:
        return Answer(Holds.YES, "fsync and full_page_writes are on")
    are_off = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off"
    if name := storage_of_its_own(connection):
        return Answer(Holds.YES, f"{are_off}, but this is {name}, whose storage keeps what is committed")
    return Answer(
        Holds.NO,
        f"{are_off}: when its host loses power, the server may lose committed batches, or its data",
        "Set both to on in postgresql.conf, unless this server is for tests.",
    )


def _standbys(connection: psycopg.Connection) -> Answer:
    names, of_these, may_see = one_row(connection, _STANDBYS)
    commit = _setting(connection, "synchronous_commit")
    if not names and (name := storage_of_its_own(connection)):
        return Answer(Holds.YES, f"this is {name}: a successor goes on with the same storage")
    if not names:
        return Answer(
            Holds.WEAKER,
            "there is no synchronous standby: if the server is replaced by a standby, the last batches may be missing. "
            "The next batch is refused then (GAP), and `pgonce recover` repairs the checkpoint",
        )
    if commit in ("off", "local"):
        return Answer(Holds.WEAKER, f"synchronous_commit is {commit}: COMMIT does not wait for the standbys {names!r}")
    if not may_see:
        return Answer(
            Holds.UNKNOWN,
            f"COMMIT waits for standbys ({names!r}), and this role may not see whether they are there",
            "Grant the role pg_read_all_stats, and ask again.",
        )
    demanded, connected = demanded_standbys(str(names)), int(str(of_these))
    if connected < demanded:
        missing = demanded - connected
        return Answer(
            Holds.NO,
            f"COMMIT waits for {_counted(demanded)} ({names!r}), and {missing} {'is' if missing == 1 else 'are'} "
            f"missing: every COMMIT would wait until {'it is' if missing == 1 else 'they are'} back, without an end",
            "`pgonce explain operations` has the section: When a synchronous standby is away.",
        )
    are, waited_for = ("is", "it") if connected == 1 else ("are", f"{demanded} of them")
    return Answer(Holds.YES, f"{_counted(connected)} {are} connected ({names!r}), and COMMIT waits for {waited_for}")


def _counted(number: int) -> str:
    return f"{number} synchronous standby{'' if number == 1 else 's'}"


QUESTIONS = (
    Question("synchronous-commit", "A batch that Spark calls done is on disk.", _synchronous_commit),
    Question("disk", "What is on disk outlasts a crash of the server's host.", _disk),
    Question("standbys", "What is committed outlasts a failover.", _standbys),
)
