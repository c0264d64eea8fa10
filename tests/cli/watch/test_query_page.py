"""The page about one query and sink, as it is drawn."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from support.watched import NOW, finding, state, text_of

from pgonce.cli.watch.lines import Marks, width_of
from pgonce.cli.watch.query_page import query_page
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.offsets_store.status.details import Blocker, QueryDetails, Session
from pgonce.offsets_store.status.failures import StoredFailure
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredWriter

ANY = st.text(max_size=120)


def batch(batch_id, rows=5, transport="inline", **others):
    """A published batch, made up."""
    fields = {"committed_at": NOW, "dropped_rows": 0, "replays": 0, **others}
    return StoredBatch("q", "s", 0, batch_id, "r", None, None, rows=rows, transport=transport, **fields)


def place(source, topic, partition, *offsets):
    """Where the query stands at one place, made up."""
    return PartitionLag("q", "s", source, topic, partition, *offsets, NOW - timedelta(seconds=30))


def writer(location):
    """What is stored of the query, made up."""
    known = {
        "checkpoint_location": location,
        "guarantee": "offsets",
        "generation": 0,
        "sink_name": "s",
        "query_id": "q",
    }
    return StoredWriter(**{**dict.fromkeys(StoredWriter.__dataclass_fields__), **known})


def known(text="x"):
    """All that can be known of a query, with this text wherever something from outside may stand."""
    blocker = Blocker(4711, f"psql{text}", "ann", "idle in transaction", NOW - timedelta(minutes=5))
    counts = {"written": 5, "deleted": 0}
    newest = batch(12, 1234567, dropped_rows=3, counts=counts, replays=1, commit_seconds=0.0341)
    letter = StoredLetter(
        7, "q", "s", 12, f"public.{text}", None, "", "amount", "22003", f"out of range {text}", {}, NOW
    )
    failed = {"code": "TYPE_MISMATCH", "message": f"Column {text}.", "batch_id": 13, "seen_by": "commit", "attempts": 3}
    failed["remedy"] = None
    when = {"first_at": NOW - timedelta(minutes=4), "last_at": NOW}
    return QueryDetails(
        writer(f"/checkpoints/{text}"),
        (newest, batch(11, transport="staged", committed_at=NOW - timedelta(minutes=3))),
        (place("0", f"orders{text}", 0, 1000, 1042, 42), place("1", None, None, {"logOffset": 3}, None, None)),
        (StoredFailure("q", "orders", "s", "r", **failed, **when),),
        (Session(1, "active", NOW, "Lock: relation", (blocker,)),),
        (letter,),
    )


def page(query=None, told=None, found=(), width=80, marks=Marks()):  # noqa: B008 (it is frozen)
    """The page's lines, as text."""
    return text_of(query_page(query or state(), told or known(), found, range(60), NOW, width, marks))


def test_what_it_is_doing_and_from_what_that_was_concluded():
    """The first lines are the state, its reason and what to do; then come the figures and the whole ids."""
    lines = page(state(state="refused", because="TYPE_MISMATCH at batch 13"), found=[finding()])
    assert lines[0] == "orders into public.orders: refused"
    assert "TYPE_MISMATCH at batch 13" in " ".join(lines[1:3])
    assert "  To do: pgonce explain TYPE_MISMATCH" in lines
    assert f"  id          {state().query_id}" in lines
    assert "  checkpoint  /checkpoints/x" in lines


def test_other_findings_of_the_query():
    """Dead letters, say, are told with what to do; findings of other queries are not."""
    letters = finding(severity="warning", finding="dead letters", what="4 rows were put aside", help="pgonce x")
    lines = page(found=[letters, finding(query_id="another", what="strange")])
    assert "  Dead letters: 4 rows were put aside." in lines
    assert not any("strange" in line for line in lines)


def test_an_error_that_is_not_ours_is_not_explained():
    """No page has the name of a class of Spark's errors, so no command is shown for it."""
    failure = StoredFailure("q", None, None, None, None, "java.lang.Error", "Spark.", "listener", 1, NOW, NOW, None)
    told = QueryDetails(failures=(failure,))
    text = "\n".join(page(told=told))
    assert "java.lang.Error  " in text
    assert "pgonce explain" not in text


def test_offsets_in_the_words_of_kafkas_tools():
    """One line a topic and partition, or a source, with the lag; what is unknown is a question mark."""
    rows = [line.split() for line in page()]
    assert ["TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"] in rows
    assert ["ordersx", "0", "1000", "1042", "42"] in rows
    assert ["source", "1", "-", '{"logOffset":', "3}", "?", "?"] in rows


def test_locks_name_their_holder_and_how_to_end_it():
    """The session, since when its transaction is open, and the command that ends it."""
    text = "\n".join(page())
    assert "pid 4711, psqlx, user ann: idle in transaction, in a transaction for 5m" in text
    assert 'To type: psql -c "SELECT pg_terminate_backend(4711)"' in text


def test_batches_and_dead_letters():
    """A line each; a column that would be empty is left out."""
    lines = page()
    assert ["12", "0s", "1", "234", "567", "34ms", "1", "inline", "3", "dropped,", "5", "written"] in map(
        str.split, lines
    )
    assert ["7", "0s", "12", "22003", "amount", "out", "of", "range", "x"] in map(str.split, lines)
    assert "    To type: pgonce dead-letters 11111111" in lines
    told = QueryDetails(batches=(batch(1),))
    (header,) = (line for line in page(told=told) if "BATCH" in line)
    assert header.split() == ["BATCH", "AGE", "ROWS", "TRANSPORT"]


def test_a_query_of_which_nothing_more_is_known_yet():
    """While the ledger is read, the page has what the list has; and a query that is gone says so."""
    assert text_of(query_page(state(), None, (), (), NOW, 80, Marks()))[-1] == "Reading the ledger ..."
    assert text_of(query_page(None, None, (), (), NOW, 80, Marks())) == ["This query is not in the ledger any more."]


@settings(deadline=None)
@given(ANY, st.sampled_from([80, 100, 200]), st.booleans())
def test_no_line_is_wider_than_the_screen(text, width, ascii_only):
    """Whatever topics, columns, checkpoints, sessions and errors are called; and nothing in it is for the terminal."""
    query = state(text, sink_name=text, because=text, run_id=text)
    found = [finding(what=text, help=text), finding(finding=text, what=text)]
    for line in query_page(query, known(text), found, range(60), NOW, width, Marks(ascii_only)):
        assert width_of(line) <= width
        assert "".join(text_of([line])).isprintable()
        assert "".join(text_of([line])).isascii() or not ascii_only
