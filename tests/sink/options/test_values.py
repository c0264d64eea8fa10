"""
What an error about the values of options says: which word was meant, and for startOver which line to write.

Covers: offsets_store.status.read_stored.
"""

from __future__ import annotations

import psycopg
import pytest
from support.ledger_history import KAFKA, OTHER, QUERY, publish, take_over

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.foreach_batch.batch_writer import PostgresBatchWriter
from pgonce.sink.options.sink_options import parse_options

NOWHERE = "host=127.0.0.1 port=1 connect_timeout=1"


def said_by_options(url, **given):
    """The error of the sink's options."""
    raw = {"url": url, "table": "orders", "checkpointLocation": "/checkpoints/new", **given}
    with pytest.raises(ConfigurationError) as error:
        parse_options(raw, overwrite=False)
    return error.value.code, str(error.value)


def said_by_writer(url, **given):
    """The error of the writer for foreachBatch."""
    with pytest.raises(ConfigurationError) as error:
        PostgresBatchWriter(url, table="orders", **given)
    return error.value.code, str(error.value)


@pytest.mark.parametrize(
    ("word", "meant"), [("update", "upsert"), ("MERGE", "upsert"), ("overwrite", "complete"), ("apend", "append")]
)
def test_a_mode_of_another_name_is_told_ours(word, meant):
    """Spark's output modes, and what SQL and other writers call it, in each way in."""
    for code, said in (said_by_options("", mode=word), said_by_writer("", mode=word)):
        assert code == "BAD_OPTION"
        assert f"Did you mean {meant}? Use one of append, upsert, " in said


class TestStartOver:
    def test_a_word_that_is_none_gets_the_line_to_write(self, url):
        """Both options with their values, as they are written there, with the id of the query that feeds the table."""
        publish(url, 3, KAFKA)
        code, said = said_by_options(url, startOver="true")
        assert code == "BAD_OPTION"
        assert f'write .option("startOver", "truncate").option("replaces", "{QUERY}").' in said
        code, said = said_by_writer(url, start_over=True)
        assert code == "BAD_OPTION"
        assert "start_over=True is not allowed. Nothing was written. Help: To let batch 0" in said.replace("\n", " ")
        assert f'write start_over="truncate", replaces="{QUERY}".' in said
        assert 'replaces="orders"' in said_by_writer(url, start_over=True, replaces="orders")[1]

    def test_without_replaces_it_names_the_queries_that_feed_the_table(self, url):
        """The living ones, by table or by sink; one that was replaced is none of them."""
        publish(url, 0, KAFKA)
        take_over(url, publish(url, 4, KAFKA, query_id=OTHER), QUERY)
        code, said = said_by_options(url, startOver="truncate")
        assert code == "NO_REPLACES"
        assert f'.option("replaces", "{OTHER}")' in said
        assert f"{OTHER} (orders, sink public.orders, last batch 4" in said
        assert QUERY not in said
        publish(url, 7, KAFKA, sink_name="mine", query_name="audit", query_id=QUERY)
        code, said = said_by_options(url, startOver="truncate", sinkName="mine")
        assert f"{QUERY} (audit, sink mine, last batch 7" in said
        assert OTHER in said
        assert "<the name or id of the old query>" in said

    @pytest.mark.parametrize("where", ["no ledger", "no server"])
    def test_where_nobody_can_be_asked_it_says_who_can(self, url, where):
        """The text is the same, without ids."""
        if where == "no ledger":
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("DROP SCHEMA IF EXISTS pgonce CASCADE")
        for said in (said_by_options, said_by_writer):
            word = "startOver" if said is said_by_options else "start_over"
            code, text = said(url if where == "no ledger" else NOWHERE, **{word: "truncate"})
            assert code == "NO_REPLACES"
            assert "<the name or id of the old query>" in text
            assert "`pgonce status`" in text
