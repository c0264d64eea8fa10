"""
Compute the ceilings, up to a thousand executors and a million rows a second: `make bench-scale PART=model`.

Pure: computes, and measures nothing. Invariant: every figure that goes in is one that a command of this repository has
measured, and says which; every figure that comes out follows from those by the formulas below, which a test checks.

A batch of ``n`` million rows is made by tasks, on all cores at once, and written by its commit, on one connection. Of
each step the model knows how many seconds of one core a million rows take. What runs at the same time counts once, with
the slowest; what runs one after the other adds up.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace

MILLION = 1_000_000


@dataclass(frozen=True)
class Rates:
    """
    Seconds of one core for a million rows of six columns (84 bytes as COPY), and what a batch costs besides.

    :param task: to make rows in Spark and hand them to Python. `make bench`: "Python sink, does nothing", two cores.
    :param encode: Arrow to the bytes of a COPY. `make bench-scale PART=rates`, as the next four.
    :param copy: one COPY into the target, in Postgres.
    :param stage: a task's COPY into the staging table, in Postgres.
    :param insert: INSERT ... SELECT from there, in the commit.
    :param wal_copy: bytes of WAL that a COPY writes for a row.
    :param wal_insert: the same for staged rows.
    :param receive: what the receiver needs: 0.1 s itself, and 0.2 s for its lines, which are encrypted.
        benchmarks/NOTES.md.
    :param collect: what the driver needs to bring a million rows from the JVM to Python, as Arrow: up to 1.2 s with
        making them, less the 0.4 s for that. benchmarks/NOTES.md.
    :param trigger_seconds: of a batch without rows. `make bench`: a Python sink that does nothing, 1,000 rows.
    :param task_seconds: of the driver for each task. `make bench-scale PART=tasks`: a foreachBatch that does nothing,
        whose tasks ran on the driver's own cores, so that this is too much rather than too little.
    :param message_seconds: of the commit for each task. The same.
    """

    task: float
    encode: float
    copy: float
    stage: float
    insert: float
    wal_copy: float
    wal_insert: float
    receive: float
    collect: float
    trigger_seconds: float
    task_seconds: float
    message_seconds: float


@dataclass(frozen=True)
class Cluster:
    """
    What there is.

    :param executors: with ``cores`` each; a task takes one.
    :param sinks: queries that each write their share at the same time (by ranges of keys, say).
    :param databases: servers over which the sinks are divided.
    :param server_cores: of each server.
    :param wal_bytes_a_second: what the disk of each server takes.
    """

    executors: int
    cores: int = 4
    sinks: int = 1
    databases: int = 1
    server_cores: int = 16
    wal_bytes_a_second: float = 200e6


# Inline batches are small: 13 times `inlineBytes` at most.
WAYS = ("staged", "receiver", "foreachBatch")


def batch_seconds(way: str, millions: float, cluster: Cluster, rates: Rates) -> float:
    """How long one sink takes for a batch of so many million rows, with its share of the executors."""
    cores = max(1.0, cluster.executors * cluster.cores / cluster.sinks)
    fixed = rates.trigger_seconds + cores * (rates.task_seconds + rates.message_seconds)
    made = millions * (rates.task + (0 if way == "foreachBatch" else rates.encode)) / cores
    copied = millions * rates.copy
    if way == "staged":
        return fixed + made + millions * rates.stage / cores + millions * rates.insert
    if way == "receiver":
        return fixed + max(made, copied, millions * rates.receive)
    # The driver's Python encodes and sends in one thread, while Spark makes and brings other rows.
    return fixed + max(made, millions * rates.collect, millions * rates.encode + copied)


def server_rows_a_second(way: str, cluster: Cluster, rates: Rates) -> dict[str, float]:
    """What all servers together take at most, by what bounds them."""
    insert, wal = (rates.insert, rates.wal_insert) if way == "staged" else (rates.copy, rates.wal_copy)
    if way == "staged":
        insert += rates.stage
    return {
        "the servers' cores": MILLION / insert * cluster.server_cores * cluster.databases,
        "the servers' WAL": cluster.wal_bytes_a_second / wal * cluster.databases,
    }


def rows_a_second(way: str, millions: float, cluster: Cluster, rates: Rates) -> tuple[float, str]:
    """How many rows a second all sinks write at most, and what holds them back."""
    seconds = batch_seconds(way, millions, cluster, rates)
    of_sinks = cluster.sinks * millions * MILLION / seconds
    bounds = {what_holds_back(way, millions, cluster, rates): of_sinks, **server_rows_a_second(way, cluster, rates)}
    least = min(bounds, key=lambda name: bounds[name])
    return bounds[least], least


def what_holds_back(way: str, millions: float, cluster: Cluster, rates: Rates) -> str:
    """The part of a batch whose doubled speed would save most."""
    now = batch_seconds(way, millions, cluster, rates)
    faster = {
        "executors": replace(rates, task=rates.task / 2, stage=rates.stage / 2),
        "one connection's COPY or INSERT": replace(rates, copy=rates.copy / 2, insert=rates.insert / 2),
        "the driver": replace(rates, receive=rates.receive / 2, collect=rates.collect / 2, encode=rates.encode / 2),
        "the fixed cost of a batch": replace(
            rates,
            trigger_seconds=rates.trigger_seconds / 2,
            task_seconds=rates.task_seconds / 2,
            message_seconds=rates.message_seconds / 2,
        ),
    }
    return max(faster, key=lambda name: now - batch_seconds(way, millions, cluster, faster[name]))


def sinks_for(target: float, way: str, millions: float, cluster: Cluster, rates: Rates) -> int | None:
    """How many sinks it takes for so many rows a second; None if the servers cannot take them, however many sinks."""
    if target > min(server_rows_a_second(way, cluster, rates).values()):
        return None
    for sinks in range(1, 1 + cluster.executors * cluster.cores):
        if rows_a_second(way, millions, replace(cluster, sinks=sinks), rates)[0] >= target:
            return sinks
    return None


# On two cores, some of them on a busy machine; each line's command is named in the docstring of Rates.
MEASURED = Rates(
    task=3.1,
    encode=0.11,
    copy=0.64,
    stage=0.54,
    insert=0.90,
    wal_copy=80,
    wal_insert=127,
    receive=0.3,
    collect=0.8,
    trigger_seconds=0.19,
    task_seconds=0.001,
    message_seconds=0.0001,
)


def main(arguments: list[str]) -> int:
    """Print the ceilings for clusters of growing size."""
    parser = argparse.ArgumentParser(prog="make bench-scale PART=model", description="Where are the ceilings?")
    parser.add_argument("--millions", type=float, default=10, help="of rows in a batch of each sink")
    millions = parser.parse_args(arguments).millions
    print(f"Computed, not measured: rows a second, with batches of {millions:g} million rows for each sink")
    for executors in (1, 10, 100, 1000):
        for sinks, databases in ((1, 1), (8, 1), (16, 4)):
            if sinks > executors * 4:
                continue
            cluster = Cluster(executors, sinks=sinks, databases=databases)
            cells = (rows_a_second(way, millions, cluster, MEASURED) for way in WAYS)
            words = ", ".join(f"{way} {rate:,.0f} ({why})" for way, (rate, why) in zip(WAYS, cells, strict=True))
            print(f"{executors:>5} executors, {sinks:>2} sinks, {databases} databases: {words}")
    for way in WAYS:
        needed = [sinks_for(MILLION, way, millions, Cluster(1000, databases=servers), MEASURED) for servers in (1, 2)]
        print(f"1,000,000 rows/s, {way}: sinks on one server, and on two: {needed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
