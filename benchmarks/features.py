"""
Measure whether two features earn their lines: the receiver, and transactions that begin while Spark's job runs.

Runs on the driver, with Spark and Postgres on this machine: `make bench-features`. Invariant: both variants, with and
without a feature, alternate in one run on the same servers, and differ only in that feature.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from contenders import BATCH_WRITER, RECEIVED, WITHOUT_RECEIVER, Contender, Place
from loads import FULL, SMALL, Plan
from measure import by_round
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from run import POSTGRES, RESULTS, server_version, servers
from screen import about_this_run, load_as_json, show_load, write_results

from pgonce import PostgresBatchWriter
from pgonce.sink.foreach_batch.batch_writer import FrameCommits


def _not_early(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    batch_writer = PostgresBatchWriter(place.url, table=place.table, independent=True)
    # Users have no setting for this.
    batch_writer._commits = FrameCommits(batch_writer._commits.settings)  # noqa: SLF001
    return writer.foreachBatch(batch_writer)


NOT_EARLY = Contender("PostgresBatchWriter, begins with its rows", _not_early, "rows_not_early")


def main(arguments: Sequence[str]) -> int:
    """Exit code 0; a person judges the figures."""
    parser = argparse.ArgumentParser(prog="make bench-features", description="Two features, with and without.")
    parser.add_argument("--small", action="store_true", help="a quick look")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the file with all times")
    given = parser.parse_args(arguments)
    plan: Plan = SMALL if given.small else FULL
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    loads = []
    with servers() as (bench, postgres):
        about = about_this_run(POSTGRES, server_version(postgres))
        for load in (plan.triggers, plan.batches):
            for without, with_it in ((WITHOUT_RECEIVER, RECEIVED), (NOT_EARLY, BATCH_WRITER)):
                times = by_round((without, with_it), load, console, partial(bench.run, load=load))
                show_load(console, load, times, [without.name])
                loads.append(load_as_json(load, times))
    path = write_results(given.results, about, {"loads": loads, "small": given.small}, prefix="features-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
