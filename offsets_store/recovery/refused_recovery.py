"""
Why is a checkpoint not repaired, and what can a person do?

Pure: runs on the driver before a start, and in the command ``pgonce``. Invariant: a remedy names only commands and
options that exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import CheckpointError, RecoveryError
from .stopped_query import CheckpointFacts, SinkFacts

NOTHING_CHANGED = "Nothing was changed, neither in the checkpoint nor in the ledger."


def no_checkpoint(checkpoint: CheckpointFacts) -> CheckpointError:
    """The file ``metadata`` is missing, so nothing says whose checkpoint this is."""
    return CheckpointError(
        "CHECKPOINT_NOT_FOUND",
        f"There is no checkpoint of a query at {checkpoint.location}: it has no file named metadata"
        + (f", though offsets/ ends with batch {checkpoint.newest}." if checkpoint.offsets else "."),
        NOTHING_CHANGED,
        "Give the location that the query itself uses. If only the file is lost, write it again: "
        '{"id":"<query id>"}, with the id that `pgonce status` shows for this location.',
    )


def unknown_query(checkpoint: CheckpointFacts, sinks: Sequence[SinkFacts]) -> RecoveryError:
    """No living writer of this query is in the ledger."""
    known = (
        f"knows query {checkpoint.query_id} only with sinks that were replaced or retired: "
        + ", ".join(sink.sink_name for sink in sinks)
        if sinks
        else f"does not know query {checkpoint.query_id}"
    )
    return RecoveryError(
        "RECOVERY_UNKNOWN_QUERY",
        f"The ledger {known}, so it says nothing of the checkpoint {checkpoint.location}.",
        NOTHING_CHANGED,
        "Check that url names the database that the query writes to. A query that wrote elsewhere before is taken in "
        "with adoptCheckpoint: `pgonce explain replace-your-foreachbatch`. If the database fell back to a time before "
        "the first batch of this query, start it on a new, empty checkpoint that begins where this one did.",
    )


def stateful(checkpoint: CheckpointFacts) -> RecoveryError:
    """The query keeps state, whose versions are bound to its batches."""
    return RecoveryError(
        "RECOVERY_STATEFUL",
        f"The query {checkpoint.query_id} keeps state, and its checkpoint {checkpoint.location} does not agree with "
        "the ledger. State belongs to the batches that the checkpoint has done: it can be moved neither forward nor "
        "back.",
        NOTHING_CHANGED,
        "Bring back checkpoint and database of the same time. If that is impossible, `pgonce accept` lets the next "
        "batch through by hand; `pgonce doctor` says which one it is and what the ledger thinks of it.",
    )


def stateful_once_more(checkpoint: CheckpointFacts, batch_id: int) -> RecoveryError:
    """Spark runs a batch again first, and so makes its state and its commit."""
    return RecoveryError(
        "RECOVERY_STATEFUL",
        f"The query {checkpoint.query_id} keeps state, and its checkpoint {checkpoint.location} lacks the commits of "
        f"its last two batches (asynchronous state checkpointing). Spark runs batch {batch_id} again at the next "
        f"start, which is a proven replay, and then plans batch {batch_id + 1} again, which is refused.",
        NOTHING_CHANGED,
        "Start the query once more, and do not recover it before that. When it has been refused, `pgonce recover` puts "
        f"the recorded entry of batch {batch_id + 1} back.",
    )


def state_went_on(checkpoint: CheckpointFacts, batch_id: int) -> RecoveryError:
    """Batches after the last one have left state."""
    return RecoveryError(
        "RECOVERY_STATEFUL",
        f"The query {checkpoint.query_id} keeps state, and state/ of its checkpoint {checkpoint.location} holds "
        f"versions that only batches after {batch_id} can have made, of which neither offsets/ nor the ledger knows.",
        NOTHING_CHANGED,
        "Bring back checkpoint and database of the same time.",
    )


def files_of_a_stateful_query(source_id: str) -> RecoveryError:
    """The recorded entry is only the number of a list of files, and the list may have been written again."""
    return RecoveryError(
        "RECOVERY_UNPROVEN",
        f"The query keeps state, and its source {source_id} reads files: the recorded entry is the number of a list in "
        f"sources/{source_id}, and nothing proves that the list still holds the files that it held.",
        NOTHING_CHANGED,
        "Bring back checkpoint and database of the same time; or, if you know that the next batch is the right one, "
        "let it through with `pgonce accept`.",
    )


def unfinished_beside_state(checkpoint: CheckpointFacts) -> RecoveryError:
    """A first entry was half written, and there is state of batches that are gone."""
    return RecoveryError(
        "RECOVERY_UNPROVEN",
        f"{', '.join(sorted(checkpoint.unfinished))} are in {checkpoint.location}, offsets/ has no entry, and "
        "there is a folder state/: a driver that is killed in its first batch leaves less than that.",
        NOTHING_CHANGED,
        "Give the query a new checkpoint.",
    )


def apart(sinks: Sequence[SinkFacts]) -> RecoveryError:
    """The sinks stand further apart than one batch."""
    where = ", ".join(f"{sink.sink_name} at batch {sink.last_batch_id}" for sink in sinks)
    return RecoveryError(
        "RECOVERY_APART",
        f"The query's sinks stand more than one batch apart ({where}), and Spark runs only one batch again.",
        NOTHING_CHANGED,
        "If one of them is gone for good, say so with `pgonce retire`, and recover again. If all are in use, bring "
        "back a database in which they stood at the same batch.",
    )


def by_numbers(sinks: Sequence[SinkFacts]) -> RecoveryError:
    """A sink was judged by batch ids alone."""
    names = ", ".join(sink.sink_name for sink in sinks if sink.guarantee == "ids")
    return RecoveryError(
        "RECOVERY_UNPROVEN",
        f"The sink {names} was written with offsetsFrom=listener: the ledger has batch ids of it and no texts of "
        "offsets/, and ids alone prove nothing.",
        NOTHING_CHANGED,
        _ELSE,
    )


def common_text(sinks: Sequence[SinkFacts], batch_id: int) -> str:
    """
    The text of an entry that all sinks have recorded.

    :raises RecoveryError: RECOVERY_UNPROVEN, where there is none.
    """
    texts = {sink.text_of(batch_id) for sink in sinks}
    text = texts.pop()
    if text is None or texts:
        raise no_common_text(sinks, batch_id)
    return text


def no_common_text(sinks: Sequence[SinkFacts], batch_id: int) -> RecoveryError:
    """The text of an entry is not recorded, or not by all with the same bytes."""
    names = ", ".join(sink.sink_name for sink in sinks)
    return RecoveryError(
        "RECOVERY_UNPROVEN",
        f"The ledger does not have the text of offsets/{batch_id}, or not the same text for each sink ({names}).",
        NOTHING_CHANGED,
        _ELSE,
    )


def side_log_behind(checkpoint: CheckpointFacts, source_id: str, number: int) -> RecoveryError:
    """A file source cannot be moved to that place."""
    return RecoveryError(
        "RECOVERY_UNPROVEN",
        f"Source {source_id} reads files and keeps the list of them in {checkpoint.location}/sources/{source_id}. The "
        f"ledger is at entry {number} of that list, and the list cannot be moved there, neither back nor past its end.",
        NOTHING_CHANGED,
        "Bring back the newest copy of the checkpoint, with all of sources/; or a database of the checkpoint's time.",
    )


def topic_recreated(batch_id: int) -> RecoveryError:
    """The next batch ends before it starts, so a topic was recreated."""
    return RecoveryError(
        "RECOVERY_UNPROVEN",
        f"The range of batch {batch_id} goes back, or a partition of it is gone: the topic was recreated, and planning "
        "the batch again would not change that.",
        NOTHING_CHANGED,
        "Start a new checkpoint for the new topic, with independent=true.",
    )


def unproven(what: str) -> RecoveryError:
    """Nothing proves what to do, for another reason."""
    return RecoveryError("RECOVERY_UNPROVEN", what, NOTHING_CHANGED, _ELSE)


_ELSE = (
    "Bring back checkpoint and database of the same time; or start a new checkpoint at the stored offsets (Kafka): "
    "`pgonce offsets QUERY --starting-offsets`, with replaces=<query id>; or, if you know that the next batch is the "
    "right one, let it through with `pgonce accept`. To load the table again instead, use `pgonce forget` first."
)
