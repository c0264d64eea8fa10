"""
The command ``pgonce swap``: a table that was filled beside the living one takes its place.

Runs in a shell, without Spark, under a role that owns the ledger and both tables. Invariant: without ``--yes`` it only
shows what it would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from pgonce.offsets_store.rebuild.swap import LOCK_SECONDS, Allowed, Swap, swap_tables

from .output import print_lines
from .terms import NOT_DONE, Url, Yes, errors_as_text


def swap(
    table: Annotated[str, typer.Argument(help="The living table, as SQL names it.")],
    new_table: Annotated[str, typer.Argument(help="The table that takes its place, and gives it its own name.")],
    *,
    reason: Annotated[str, typer.Option(help="Why; the ledger keeps it.")],
    url: Url = "",
    caught_up: Annotated[
        bool, typer.Option("--caught-up", help="The new table has all rows that are needed, though nothing proves it.")
    ] = False,
    despite_differences: Annotated[
        bool, typer.Option("--despite-differences", help="The new table may have other columns, keys and indexes.")
    ] = False,
    back: Annotated[
        bool, typer.Option("--back", help="Undo the last swap of these tables, if nothing was published since.")
    ] = False,
    lock_seconds: Annotated[
        float, typer.Option("--lock-timeout", min=0.001, help="Seconds to wait for a lock; readers wait behind it.")
    ] = LOCK_SECONDS,
    yes: Yes = False,
) -> None:
    """Exchange two tables in one transaction: readers of a name see the old rows, or the new ones, and never none."""
    with errors_as_text():
        allowed = Allowed(caught_up=caught_up, despite_differences=despite_differences, back=back)
        found = swap_tables(
            table, new_table, url, reason=reason, allowed=allowed, dry_run=not yes, lock_seconds=lock_seconds
        )
        print_lines([*_lines(found), "Exchanged." if yes else NOT_DONE])


def _lines(found: Swap) -> Iterator[str]:
    living, new = found.living.qualified_name, found.new.qualified_name
    yield f"{new} takes the place of {living}, and the other way round: names, grants, comments, sequences, indexes."
    for feeder in (*found.of_new, *found.of_living):
        yield f"{feeder.label[0].upper()}{feeder.label[1:]}: stands at batch {feeder.last_batch_id}."
        name = found.names[feeder.oid]
        yield f"  Its rows are in {name} afterwards: to let it go on, start it with table={name}."
    if found.jobs_behind:
        yield (
            f"Batch jobs that were published into {living} and not into {new}: {found.jobs_behind}. Keys go with the "
            f"rows: a job that is run again with table={living} afterwards is published there."
        )
    yield "A query that is not told so is refused at its next batch (SWAPPED, TARGET_CHANGED), and writes nothing."
