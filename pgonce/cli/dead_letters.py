"""
The command ``pgonce dead-letters``: list rows that were put aside, write them after all, or give them up.

Runs in a shell, under a role that owns the ledger or was granted what a change needs. Invariant: without ``--yes`` it
only shows what it would do; only ``--replay`` imports pyspark, because only that writes rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from pgonce.dead_letters.chosen_letters import Choice, chosen_letters, discard_letters, shown_ids
from pgonce.offsets_store.errors import needing
from pgonce.offsets_store.log_lines import in_command, one_line
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.status.stored import outcomes

from .answers.output import at_work, json_text, print_found, print_lines
from .terms import NOT_DONE, ExitCode, Json, Query, Sink, Url, Yes

if TYPE_CHECKING:
    from pgonce.dead_letters.replay import Group

_SHORT_ID = 8


def dead_letters(
    query: Query,
    *,
    url: Url = "",
    sink: Sink = None,
    code: Annotated[
        str | None, typer.Option(help="Only letters with this SQLSTATE or this error code of pgonce.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many letters to list, the newest first.")] = 20,
    ids: Annotated[list[int] | None, typer.Option("--id", help="Only this letter; may be given several times.")] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Write the rows into their tables, and delete the letters of these rows."),
    ] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Delete the letters; needs --reason.")] = False,
    reason: Annotated[str | None, typer.Option(help="The reason, which the ledger keeps.")] = None,
    as_json: Json = False,
    yes: Yes = False,
) -> None:
    """List the rows that a query has put aside (deadLetters); replay them, or discard them."""
    if replay and discard:
        raise typer.BadParameter("--replay and --discard exclude each other.")
    if not (replay or discard):
        letters = OffsetsStore(url).dead_letters(query, sink, limit, code=code, ids=ids or ())
        print_found(letters, letter_table, as_json=as_json, if_none="No such dead letter is there.")
        if letters and not as_json:
            print_lines(_what_to_do(letters, sink))
        return
    if as_json:
        raise typer.BadParameter("--json lists letters; it has no effect on --replay and --discard.")
    choice = chosen_letters(url, query, sink, ids=ids or (), code=code)
    if discard:
        found = discard_letters(choice, url, reason=reason or "", dry_run=not yes)
        print_lines([*_discard_says(found), _done("Discarded.", found, yes=yes)])
    else:
        with at_work("Replaying dead letters" if yes else "Trying to replay dead letters"):
            groups = _replay(choice, url, reason, yes=yes)
        letters = [letter for group in groups for letter in group.letters]
        kept = [one for group in groups for one in group.kept]
        done = f"Replayed {len(letters) - len(kept)} of {len(letters)}." if kept else "Replayed."
        print_lines([*_replay_says(groups, is_done=yes), _done(done, letters, yes=yes)])
        if kept:
            raise typer.Exit(ExitCode.FAILED)


def _what_to_do(letters: Sequence[StoredLetter], sink: str | None) -> list[str]:
    chosen = f" --sink {in_command(sink, 'SINK')}" if sink else ""
    return [
        "A row that its table refuses can be repaired (UPDATE; page `dead-letters` of the documentation). This tries "
        "to write the rows, and says what is refused, and why; without --yes, nothing is changed:",
        f"  pgonce dead-letters {in_command(letters[0].query_id, 'QUERY')[:_SHORT_ID]}{chosen} --replay",
    ]


def _done(word: str, letters: Sequence[StoredLetter], *, yes: bool) -> str:
    if not letters:
        return "No such dead letter is there; nothing was changed."
    return word if yes else NOT_DONE


def _replay(choice: Choice, url: str, reason: str | None, *, yes: bool) -> list[Group]:
    with needing("spark", "A replay"):
        from pgonce.dead_letters.replay import replay_letters
    return replay_letters(choice, url, reason=reason, dry_run=not yes)


def _replay_says(groups: Sequence[Group], *, is_done: bool) -> Iterator[str]:
    """What is written, by table, and which letters stay, by the reason why."""
    for group in groups:
        if group.letters and not group.replayed:
            continue
        became = ", ".join(outcomes(group.counts))
        yield (
            f"{len(group.replayed)} into {group.destination.table} (mode {group.destination.mode}): "
            f"{_ids(group.replayed)}{f'; {became}' if became else ''}."
        )
    by_reason: dict[tuple[str, bool], list[StoredLetter]] = {}
    for group in groups:
        for one in group.kept:
            by_reason.setdefault((one.why, one.is_refused), []).append(one.letter)
    for (why, is_refused), letters in by_reason.items():
        changes_nothing = "changes nothing, so its letter stays" if is_done else "would change nothing"
        what = "is refused, so its letter stays" if is_refused else changes_nothing
        yield f"{_ids(letters)}: the row {what}: {why}{'' if why.endswith('.') else '.'}"


def _discard_says(letters: Sequence[StoredLetter]) -> list[str]:
    """What is deleted, by table and code."""
    by_reason: dict[tuple[str, str], list[StoredLetter]] = {}
    for letter in letters:
        by_reason.setdefault((letter.target, letter.code), []).append(letter)
    said = [
        f"{len(own)} for {target}, refused as {code}: {_ids(own)}." for (target, code), own in sorted(by_reason.items())
    ]
    if letters:
        said.append("A discarded row is deleted for good: no restart of the query brings it back.")
    return said


def _ids(letters: Sequence[StoredLetter]) -> str:
    return f"id {shown_ids([letter.dead_letter_id for letter in letters])}"


_LONGEST_ROW = 400


def letter_table(letters: Iterable[StoredLetter]) -> Table:
    """One row a dead letter; a long row or record of the batch is cut."""
    table = Table(show_lines=True)
    for name in ("Id, time", "Batch, target", "Position", "Column, code, message", "Row or record"):
        table.add_column(name, overflow="fold")
    for letter in letters:
        row = letter.row_or_record
        cells = (
            [str(letter.dead_letter_id), f"{letter.made_at.astimezone():%Y-%m-%d %H:%M:%S}"],
            [f"batch {letter.batch_id}", letter.target],
            ["-" if letter.position is None else json_text(letter.position)],
            [letter.column_name or "-", letter.code, letter.message],
            [row if len(row) <= _LONGEST_ROW else f"{row[:_LONGEST_ROW]}... (--json shows all)"],
        )
        table.add_row(*(Text("\n".join(map(one_line, cell))) for cell in cells))
    return table
