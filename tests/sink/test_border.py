"""What is left of an error's way where it leaves pgonce for Spark."""

from __future__ import annotations

import logging
import threading
import traceback

import pytest
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.log_lines import one_line
from pgonce.sink.border import called_by_spark, calls_users_code
from pgonce.sink.options.destination import destination


def refused_inside():
    """An error of ours, from a module of ours, with a cause of its own."""
    try:
        {}["what Postgres said of a row"]
    except KeyError:
        destination("", "append", (), None)


def closed():
    """An error of the user's own."""
    raise ValueError("the shop is closed")


def lost_inside():
    """An error that nobody thought of, in a module of ours."""
    one_line(None)


def in_foreach_batch(function):
    """A border that calls a function of the user's in between."""

    @calls_users_code(function)
    def write_batch():
        try:
            {}["met before"]
        except KeyError:
            function()

    return write_batch


def shown(border):
    """The functions that the traceback of a border's error names, and all of its text."""
    with pytest.raises(Exception) as raised:
        border()
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names.pop(0) == "shown"
    return names, "".join(traceback.format_exception(raised.value))


def test_an_error_of_ours_shows_nothing_of_its_way():
    """Neither frames nor the error that came before it: its sentence is all."""
    names, text = shown(called_by_spark(refused_inside))
    assert names == []
    assert "KeyError" not in text
    assert "[OPTION_MISSING]" in text


def test_an_error_of_ours_inside_a_users_function_shows_the_users_line():
    """Which of the function's calls it was, is for the user to know; what happened in it is not."""
    names, text = shown(in_foreach_batch(refused_inside))
    assert names == ["refused_inside"]
    assert "[OPTION_MISSING]" in text


def test_an_error_of_the_users_own_is_shown_from_the_users_function_on():
    """What lies between Spark and the function is left out, and nothing else."""
    names, text = shown(in_foreach_batch(closed))
    assert names == ["closed"]
    assert "ValueError: the shop is closed" in text


@pytest.mark.parametrize("border", [called_by_spark, in_foreach_batch], ids=["worker", "function"])
def test_an_error_that_nobody_thought_of_keeps_its_frames(border):
    """A fault of ours must be found."""
    names, _ = shown(border(lost_inside))
    assert names[-2:] == ["lost_inside", "one_line"]


def test_the_frames_are_in_the_log_for_developers(caplog):
    """At DEBUG, all of the way."""
    with caplog.at_level(logging.DEBUG, "pgonce"), pytest.raises(PgonceError):
        called_by_spark(refused_inside)()
    # Not caplog.text: how lines are laid out, PySpark may have decided for this process.
    said = "".join("".join(traceback.format_exception(*record.exc_info)) for record in caplog.records)
    assert "in refused_inside" in said
    assert "in destination" in said
    assert "what Postgres said of a row" not in said


def jvm(spark):
    """The driver's JVM."""
    return spark._jvm  # noqa: SLF001 (py4j has no other way)


def interrupted(spark):
    """Java that is interrupted in the thread which calls it, as that of a stopped query is."""
    java = jvm(spark).java.lang
    java.Thread.currentThread().interrupt()
    java.Thread.sleep(1000)


def cancelled(spark):
    """A job that is cancelled while it runs."""
    slow = spark.range(0, 600, 1, 1).selectExpr("reflect('java.lang.Thread', 'sleep', cast(100 AS bigint))")
    cancels = threading.Timer(2, spark.sparkContext.cancelAllJobs)
    cancels.start()
    try:
        slow.collect()
    finally:
        cancels.join()


def failed(spark):
    """An error of Java's that has another reason."""
    jvm(spark).java.lang.ClassLoader.getSystemClassLoader().loadClass("no.such.Class")


def taken_for_a_stop(spark, text):
    """Whether Spark, when a query is stopped, takes the text of a Python error for an interruption by that."""
    streaming = jvm(spark).org.apache.spark.sql.execution.streaming
    since_4_1 = streaming.runtime.StreamExecution
    execution = since_4_1 if isinstance(since_4_1, JavaClass) else streaming.StreamExecution
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001 (py4j has no other way)
    return execution.isInterruptionException(jvm(spark).py4j.Py4JException(text), context)


@pytest.mark.spark
@pytest.mark.parametrize("border", [called_by_spark, in_foreach_batch], ids=["writer", "function"])
@pytest.mark.parametrize("stops", [interrupted, cancelled])
def test_spark_knows_a_stop_by_its_text(stops, border, spark):
    """Whatever Java's stack trace says, Spark reads a short text, on which its regular expression ends."""
    if stops is cancelled and spark.version.startswith("3."):
        pytest.skip("Spark 3.5 gives a cancelled job no error class, and its expression does not overflow")
    _, text = shown(border(lambda: stops(spark)))
    assert taken_for_a_stop(spark, text)
    assert len(text) < 2000


@pytest.mark.spark
@pytest.mark.parametrize("border", [called_by_spark, in_foreach_batch], ids=["writer", "function"])
def test_another_error_of_java_stays(border, spark):
    """It is no stop, and its text says what has failed."""
    with pytest.raises(Py4JJavaError, match="ClassNotFoundException"):
        border(lambda: failed(spark))()
