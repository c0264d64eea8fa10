"""
The texts for refused batches: what happened, what it means for the data, and what to type next.

Pure: runs in the commit. Invariant: a remedy names only options and commands that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import NOTHING, RefusedBatch
from ..log_lines import in_command
from ..offsets import says_which_rows, tells_which_rows
from .decide import Verdict, backwards, begun_late, recreated, takes_over
from .facts import Batch, Ledger, Remedies, Rival, Writer


def refusal(verdict: Verdict, ledger: Ledger, batch: Batch, remedies: Remedies) -> RefusedBatch:
    """The error for a verdict that neither publishes nor skips."""
    what, remedy = _WORDS[verdict](ledger, batch, remedies)
    return RefusedBatch(verdict.name, what, _OTHERS if verdict in _OTHERS_WROTE else NOTHING, remedy)


# With these verdicts, rows of a batch of this number are in the target, though not those that were refused.
_OTHERS_WROTE = (Verdict.FENCED, Verdict.DUPLICATE, Verdict.CHANGED)
_OTHERS = "Nothing was written this time. The rows and offsets that were published before stay."


def _writer(batch: Batch) -> str:
    return f"query {batch.query_id} into sink {batch.sink_name!r}"


def _typed(query_id: str) -> str:
    return in_command(query_id, "QUERY")


def _doctor(batch: Batch) -> str:
    where = in_command(batch.checkpoint_location, "CHECKPOINT")
    return (
        f"`pgonce doctor {where}` shows where both are, and `pgonce recover {where}` makes every repair that is "
        "proven to be right."
    )


def _repair(ledger: Ledger, batch: Batch) -> str:
    if batch.span is None and ledger.last is not None and ledger.last.positions is not None:
        return "The stored rows have positions: set positionColumns again."
    return _doctor(batch)


def _from_stored(ledger: Ledger, batch: Batch) -> str:
    """How a new checkpoint begins where the stored rows end, or how to go on without one."""
    query, end = _typed(batch.query_id), ledger.writer.stored_to if ledger.writer else None
    # For batches that are judged by their ids alone, this is not known.
    state = f" ({EMPTY_STATE})" if batch.stateful else ""
    if says_which_rows(end):
        return (
            f"start a new checkpoint at the stored offsets: `pgonce offsets {query}`, with replaces={batch.query_id}"
            f"{state}"
        )
    if batch.stateful:
        # Its state cannot be written again, and such a source cannot be told where to begin.
        return (
            f"let this batch through without proof (`pgonce accept {query} --batch {batch.batch_id} --reason ... "
            "--yes`), though rows of batches that were published before may then be in the table twice; or "
            f"{_emptied(query, batch.sink_name)}, and load the table again on a new checkpoint"
        )
    return f"{_written_again(query)}, if its source allows that, and start there"


def _written_again(query: str) -> str:
    return f"write the checkpoint of query {query} again (page `recovering` of the documentation, A lost checkpoint)"


EMPTY_STATE = "a stateful query then begins with empty state, and rows that its state held are lost"


def _foreign(ledger: Ledger, batch: Batch, remedies: Remedies) -> tuple[str, str]:
    rivals = "; ".join(map(_named, ledger.rivals))
    if remedies.replaces:
        replaced = ledger.rival(remedies.replaces)
        if replaced is None:
            return (
                f"replaces={remedies.replaces} was given for {_writer(batch)}, but no query of this id has written "
                f"into this sink. Known for it: {rivals or 'no other query'}.",
                f"Set replaces to the whole id of one that has: `pgonce status --wide` shows them. {_BOTH}",
            )
        if replaced_by := replaced.writer.replaced_by:
            return (
                f"replaces={remedies.replaces} was given for {_writer(batch)}, but query {replaced_by} has replaced "
                "that query already.",
                f"If this query is to go on where that one ended, set replaces={replaced_by}, and start at its stored "
                "offsets. If the rows of both are gone, and this query is to write all of them again, remove replaces.",
            )
        others = [rival for rival in ledger.rivals if rival.query_id != remedies.replaces]
        if others and takes_over(ledger, batch, remedies):
            return (
                f"replaces={remedies.replaces} was given for {_writer(batch)}, and it goes on where that query ended, "
                f"but other queries feed the same {_place(ledger)} as well: {'; '.join(map(_named, others))}.",
                f"{_ways_on(others[0], batch)} {_BOTH}",
            )
        late = begun_late(replaced.writer.stored_to, batch.start)
        added = f", and leaves out the first rows of {', '.join(late)}, which it has not read" if late else ""
        return (
            f"replaces={remedies.replaces} was given, but batch 0 of {_writer(batch)} does not start where that "
            f"query ended for this sink{added}. Known for this sink: {rivals}.",
            f"{_ways_on(replaced, batch, late)} {_BOTH}",
        )
    if own := ledger.rival(batch.query_id):
        what, way = _under_another_name(own, batch)
        return what, f"{way} If the query is to write its rows twice, set independent=true."
    unknown = "which has written to no table so far" if batch.batch_id else "which the ledger does not know"
    return (
        f"This is batch {batch.batch_id} of {_writer(batch)}, {unknown}, but another query already feeds the same "
        f"{_place(ledger)}: {rivals}. If both read the same rows (a checkpoint that was lost or moved, a full "
        f"refresh), these would be written a second time.",
        f"If it was started by mistake, leave it stopped. {_ways_on(ledger.rivals[0], batch)} {_BOTH}",
    )


def _taken_in_again(batch: Batch, writer: Writer, first: str = "") -> str:
    """How the rows of a retired writer are gone on from, as the end of a sentence; ``first`` is to be done before."""
    last = writer.last_batch_id
    if batch.batch_id < last:
        return (
            f"the table has its batches up to {last}, and this checkpoint is an older copy: bring back its newest one "
            "first."
        )
    number = last + 1 if batch.batch_id == last else batch.batch_id
    holds = f"and the table has all rows of the batches before batch {number}, and no other query writes the next ones"
    return f"{holds}, {first}set adoptCheckpoint={number}."


def _under_another_name(own: Rival, batch: Batch) -> tuple[str, str]:
    if own.writer.retired_at:
        return (
            f"This is batch {batch.batch_id} of {_writer(batch)}, but an earlier run of this query has written it into "
            f"the same table, as sink {own.other_sink!r}, which was retired or forgotten since.",
            f"Leave this query stopped. If that was a mistake, {_taken_in_again(batch, own.writer)}",
        )
    return (
        f"This is batch {batch.batch_id} of {_writer(batch)}, but an earlier run of this query has written it into the "
        f"same table, as sink {own.other_sink!r}. The table was renamed, or sinkName was changed, before Spark had "
        "noted that the batch is done.",
        f"Set sinkName to {own.other_sink!r} (`name=` for a transactional function), and keep it.",
    )


def _named(rival: Rival) -> str:
    sink = f" through sink {rival.other_sink!r}" if rival.other_sink else ""
    return f"query {rival.query_id}{sink} ({rival.shares})"


def _place(ledger: Ledger) -> str:
    return "table" if all(rival.other_sink for rival in ledger.rivals) else "sink"


_BOTH = "If both queries are meant to feed this sink, with different rows, set independent=true."


def _ways_on(rival: Rival, batch: Batch, late: Sequence[str] = ()) -> str:
    """
    How to go on from the end of another query, which depends on its source's offsets; or how to load everything again.

    :param late: the partitions that it has not read, and that do not begin at 0.
    """
    query, end = _typed(rival.query_id), rival.writer.stored_to
    if rival.other_sink:
        # A query that replaces another one has its sink's name.
        return (
            f"To let this query take its place, give it the same sinkName, {rival.other_sink!r} (`name=` for a "
            "transactional function), and start it again: the error then says how to go on."
        )
    if batch.stateful or rival.writer.stateful:
        way = f"{_brought_back(rival)} its state, if it keeps any, is only there."
    elif says_which_rows(end):
        asked = " --bootstrap-servers ..." if late else ""
        way = (
            "To go on where the old query ended, start the new checkpoint with Kafka's startingOffsets set to what "
            f"`pgonce offsets {query}{asked}` prints, and set replaces={rival.query_id}."
        )
        if late:
            way += (
                f" If Kafka has deleted the first rows of {', '.join(late)}, or they are not wanted, run `pgonce "
                f"retire {query} --yes`, and start this query again on its new checkpoint, with independent=true and "
                "without replaces."
            )
    elif end and all(map(tells_which_rows, end.values())):
        way = f"To go on where the old query ended, {_written_again(query)}, and start it there."
    else:
        way = f"{_brought_back(rival)} its offsets do not say which rows come next."
    return (
        f"{way} To load the table again from the beginning, {_emptied(query, batch.sink_name)}, and start this query."
    )


def _emptied(query: str, sink_name: str) -> str:
    """How the rows of a query go, in one transaction with what is known of it."""
    return (
        "empty it and forget the old query with "
        f"`pgonce forget {query} --sink {in_command(sink_name, 'SINK')} --truncate --reason ... --yes`"
    )


def _brought_back(rival: Rival) -> str:
    location = rival.writer.checkpoint_location
    return f"To go on where the old query ended, bring its checkpoint back{f' to {location}' if location else ''}:"


def _unknown(ledger: Ledger, batch: Batch, remedies: Remedies) -> tuple[str, str]:
    if own := ledger.rival(batch.query_id):
        what, way = _under_another_name(own, batch)
        return what, f"{way} If the query is to write its rows twice, call this writer after the other one."
    given = remedies.adopt_checkpoint
    other = "" if given is None else f" adoptCheckpoint={given} is set, which is neither this batch nor the next one."
    return (
        f"The ledger has no record of {_writer(batch)}, but Spark runs batch {batch.batch_id} of it: the checkpoint "
        "has a past that this ledger did not see (another sink, another database, another sinkName; or the ledger was "
        f"dropped or restored since).{other}",
        f"Does the table have all rows of the batches before batch {batch.batch_id}? If this database or the table was "
        "restored, or lost commits in a failover, restore both of one moment; or start the query on a new, empty "
        "checkpoint that begins with the first record whose row is lost. Only if it has them, go on here: if batch "
        f"{batch.batch_id} has NOT been written to the target by other means, set adoptCheckpoint={batch.batch_id}: it "
        "and all later ones are published. If it HAS been written already, set "
        f"adoptCheckpoint={batch.batch_id + 1}: batch {batch.batch_id} is recorded as done and skipped. "
        "Page `replace-your-foreachbatch` of the documentation tells how to find out. (If `pgonce status` shows this "
        "query with another sink, whose table was renamed, set sinkName to that sink instead.)",
    )


def _fenced(ledger: Ledger, batch: Batch, _: Remedies) -> tuple[str, str]:
    writer = ledger.writer
    if writer and writer.retired_at:
        return (
            f"The {_writer(batch)} was retired or forgotten by hand (`pgonce retire`, `pgonce forget`), so it may "
            "not publish any more.",
            "Leave this query stopped, or take the sink out of it. If that was a mistake, "
            + _taken_in_again(
                batch, writer, "give the writer another sinkName (`name=` for a transactional function), and "
            ),
        )
    if writer and writer.replaced_by:
        return (
            f"The {_writer(batch)} was replaced by query {writer.replaced_by}, which publishes now.",
            "Leave this query stopped. To bring it back under its own name, give it another sinkName and table.",
        )
    owner = writer.run_id if writer else "?"
    return (
        f"Run {batch.run_id} of {_writer(batch)} owned this writer, but run {owner} has published since: two drivers "
        "work on one checkpoint.",
        f"Leave this driver stopped: run {owner} goes on. `pgonce status` shows the owner. If you start this one "
        "again while the other runs, the two will compete again.",
    )


def _duplicate(_: Ledger, batch: Batch, __: Remedies) -> tuple[str, str]:
    return (
        f"Run {batch.run_id} has already handed in batch {batch.batch_id} of {_writer(batch)}: your function has "
        "called the writer again after an error, or two writers of one query share a sink name.",
        "If it is one writer, let its errors out of your function, and start the query again: the batch is then "
        "written or skipped. If they are two, give each of them a sinkName of its own (`name=` for a transactional "
        "function). Only the first one's rows of this batch are in the target; after the change the second starts with "
        "adoptCheckpoint=<batch id>.",
    )


def _changed(ledger: Ledger, batch: Batch, _: Remedies) -> tuple[str, str]:
    known = (
        "but its record differs from what Spark runs now"
        if ledger.same_id
        else "and its record is no longer kept (retainBatches)"
    )
    return (
        f"Batch {batch.batch_id} of {_writer(batch)} was published before, {known}: the checkpoint was restored from "
        "an older copy or advanced elsewhere, or the source was replaced.",
        f"{_repair(ledger, batch)} Or bring back its newest copy. If that is lost, {_from_stored(ledger, batch)}. "
        f"`pgonce history {_typed(batch.query_id)}` shows what is recorded.",
    )


def _gap(ledger: Ledger, batch: Batch, _: Remedies) -> tuple[str, str]:
    last = ledger.writer.last_batch_id if ledger.writer else -1
    missing = f"batch {last + 1}" if last + 2 == batch.batch_id else f"batches {last + 1} to {batch.batch_id - 1}"
    if batch.batch_id <= last + 1:
        missing = "what this run has published before"
    return (
        f"Spark runs batch {batch.batch_id} of {_writer(batch)}, but the ledger does not have {missing}. One of these "
        "has happened: the database was restored to an earlier state, or lost commits in a failover; your function "
        "did not call the writer for each batch; or something else wrote these batches.",
        f"If the database was restored or lost commits: {_doctor(batch)} (Or restore the checkpoint of the same time; "
        f"or {_from_stored(ledger, batch)}.) If your function left batches out, call the writer for each of them, "
        "empty ones too, and let its errors out of the function; then recover. If all that it left out were empty, "
        f"accept this batch, once: `pgonce accept {_typed(batch.query_id)} --batch {batch.batch_id} --reason ... "
        "--yes`. If something else wrote these batches, such as a function that you went back to, do not recover, "
        "because their rows would be written twice: see page `replace-your-foreachbatch` of the documentation, And "
        "back.",
    )


def _disjoint(ledger: Ledger, batch: Batch, _: Remedies) -> tuple[str, str]:
    end = ledger.writer.end_offsets if ledger.writer else None
    return (
        f"Batch {batch.batch_id} of {_writer(batch)} does not follow what was published last: it was planned after "
        f"another batch {batch.batch_id - 1} than the recorded one. It starts at {batch.start}; the stored end is "
        f"{end}. Rows would be lost or doubled.",
        f"{_repair(ledger, batch)} Or bring back the checkpoint that this ledger belongs to (an older copy was "
        f"advanced elsewhere). If it is lost, {_from_stored(ledger, batch)}.",
    )


def _recreated(ledger: Ledger, batch: Batch, remedies: Remedies) -> tuple[str, str]:
    topics = ", ".join(recreated(ledger, batch, remedies))
    if batch.topic_ids is None:
        return (
            f"For batch {batch.batch_id} of {_writer(batch)} the brokers were not asked for the ids of {topics}, and "
            "the ledger has them from an earlier run. If a topic was deleted and recreated since then, the first rows "
            "of the new one would be left out.",
            "Set bootstrapServers (bootstrap_servers), and the login with kafka.* as for the source. With "
            "offsetsFrom=listener it cannot be set: leave that out.",
        )
    return (
        f"Batch {batch.batch_id} of {_writer(batch)} reads {topics}, which was "
        "deleted and recreated since the last batch was published. By its offsets it looks like the old topic, but "
        "its rows before the stored end would never be read.",
        ANOTHER_TOPIC,
    )


OTHER_TOPICS = (
    "If the query reads other topics as well, let startingOffsets name all of them: the others at their stored "
    "offsets, or their rows would be lost or written twice."
)
ANOTHER_TOPIC = (
    "Start a new checkpoint for the new topic, with independent=true (its offsets have nothing to do with the stored "
    f"ones). {OTHER_TOPICS}"
)


def _backward(ledger: Ledger, batch: Batch, _: Remedies) -> tuple[str, str]:
    last = ledger.last.end if ledger.last else None
    reasons = backwards(batch) or [
        f"its first rows are {batch.span and batch.span.first}, the last batch ended at {last}"
    ]
    accepted = (
        "If the query is to go on without what is gone, accept the batch, once: `pgonce accept "
        f"{_typed(batch.query_id)} --batch {batch.batch_id} --reason ... --yes`. If the topic was recreated: "
    )
    return (
        f"The range of batch {batch.batch_id} of {_writer(batch)} goes back: "
        f"{'; '.join(reasons)}. "
        "The topic was deleted and recreated, or lost partitions; or the query does not read it any more.",
        f"{accepted if ledger.writer else ''}{ANOTHER_TOPIC}",
    )


_WORDS: dict[Verdict, Callable[[Ledger, Batch, Remedies], tuple[str, str]]] = {
    Verdict.FOREIGN: _foreign,
    Verdict.UNKNOWN: _unknown,
    Verdict.FENCED: _fenced,
    Verdict.DUPLICATE: _duplicate,
    Verdict.CHANGED: _changed,
    Verdict.GAP: _gap,
    Verdict.DISJOINT: _disjoint,
    Verdict.RECREATED: _recreated,
    Verdict.BACKWARD: _backward,
}
