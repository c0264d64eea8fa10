"""
Refuse a query whose rows could reach tasks in another order, or other tasks, than Kafka's partitions give.

Runs on the driver, before the query starts, on Spark's analyzed plan. Invariant: the plan is one Kafka source, under
steps that keep each record in its task and in its order; and the position columns are the source's own, unchanged. What
is not known to be so is refused, because a later Spark may have other steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pgonce.offsets_store.errors import bad_option
from pgonce.sink.errors import SparkError
from pgonce.sink.options.position_columns import PositionColumns

_SOURCES = frozenset({"StreamingRelation", "StreamingRelationV2"})
_ONE_FOR_ONE = frozenset({"Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "View", "PipeOperator"})
# One record becomes several rows, next to each other.
_SEVERAL = frozenset({"Generate"})


def refuse_other_plans(frame: DataFrame, records: DataFrame, positions: PositionColumns) -> bool:
    """
    Refuse what does not keep Kafka's order; otherwise, whether each record becomes at most one row.

    :param records: the source's frame, of which ``frame`` was made.
    :raises SparkError: REAL_TIME_PLAN.
    """
    plan = _analyzed(frame)
    nodes = list(_nodes(plan))
    kinds = [node.getClass().getSimpleName() for node in nodes]
    unknown = [kind for kind in kinds if kind not in _SOURCES | _ONE_FOR_ONE | _SEVERAL]
    if unknown:
        raise _refused(
            f"The query has a step {unknown[0]}, and only steps that keep each Kafka record in its place can be proven "
            "to lose and double nothing here: select, where, withColumn, explode, withWatermark.",
            "Leave that step out, and do it in a view of Postgres; write WITH as a temporary view of Spark; or run the "
            "query in micro-batches.",
        )
    if plan.subqueriesAll().length():
        raise _refused(
            "The query has a subquery, which Spark turns into a join.",
            "Leave it out, and do it in a view of Postgres; or run the query in micro-batches.",
        )
    sources = [node for node, kind in zip(nodes, kinds, strict=True) if kind in _SOURCES]
    if len(sources) != 1 or "kafka" not in sources[0].toString().lower():
        raise _refused("The query does not read exactly one Kafka source.", "Use only the frame that rows is given.")
    of_source = {attribute.exprId(): attribute.name() for attribute in _each(sources[0].output())}
    if of_source != {a.exprId(): a.name() for a in _each(_analyzed(records).output())}:
        raise _refused(
            "The rows do not come from the frame that rows was given.",
            "Make them of that frame: only there, Spark begins to read where the table ends.",
        )
    for name, meaning in zip(positions.names, ("topic", "partition", "offset"), strict=True):
        if of_source.get(_origin(plan, name)) != meaning:
            raise _refused(
                f"Column {name!r} is not the Kafka source's {meaning}, as it came.",
                "Select topic, partition and offset unchanged, under any names, and give these in position_columns.",
            )
    return not any(kind in _SEVERAL for kind in kinds)


def refuse_not_real_time(spark: SparkSession, frame: DataFrame, options: Mapping[str, str], real_time: str) -> None:
    """
    Refuse what Spark refuses in real time: it would do so only when the older run had lost the table.

    :param options: those of Kafka's source.
    :param real_time: how long a batch is.
    :raises SparkError: REAL_TIME_PLAN.
    :raises ConfigurationError: BAD_OPTION.
    """
    for name in options:
        if name.lower() in _NOT_IN_REAL_TIME:
            raise bad_option("BAD_OPTION", f"Spark refuses {name} in real time.", "Leave it out of kafka.")
    jvm: Any = spark._jvm
    milliseconds = jvm.org.apache.spark.sql.streaming.Trigger.RealTime(real_time).batchDurationMs()
    least = jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(spark.conf.get(_LEAST_BATCH, "5000"))
    if milliseconds < least:
        raise bad_option(
            "BAD_OPTION",
            f"real_time={real_time!r} is shorter than {least} ms, the least that Spark allows ({_LEAST_BATCH}).",
            'Write a longer time, such as "1 minute": rows do not wait for its end.',
        )
    if any(_has_python(expression) for node in _nodes(_analyzed(frame)) for expression in _each(node.expressions())):
        raise _refused(
            "The query calls a Python UDF, which Spark refuses in real time.",
            "Use Spark's own functions, or give continuous, not real_time.",
        )


_NOT_IN_REAL_TIME = frozenset({"minpartitions", "maxoffsetspertrigger"})
_LEAST_BATCH = "spark.sql.streaming.realTimeMode.minBatchDuration"


def _has_python(expression: Any) -> bool:
    is_python = expression.getClass().getSimpleName().startswith("Python")
    return is_python or any(map(_has_python, _each(expression.children())))


def refuse_not_continuous(spark: SparkSession, frame: DataFrame) -> None:
    """
    Refuse what Spark refuses in continuous mode: it would do so only when the older run had lost the table.

    :raises SparkError: REAL_TIME_PLAN.
    """
    if spark.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true") == "false":
        # Then Spark does not refuse it either.
        return
    jvm: Any = spark._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForContinuous(_analyzed(frame), jvm.org.apache.spark.sql.streaming.OutputMode.Append())
    except AnalysisException as error:
        what, _, _ = str(error).partition(";")
        raise _refused(
            f"Spark refuses it: {what.strip().rstrip('.')}.",
            "Leave that out, or give real_time, not continuous.",
        ) from None


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _origin(plan: Any, name: str) -> Any:
    """The id of the source's column that a column of the plan is, through aliases; None if it is none."""
    found = [attribute.exprId() for attribute in _each(plan.output()) if attribute.name() == name]
    if len(found) != 1:
        return None
    wanted = found[0]
    for node in _nodes(plan):
        if node.getClass().getSimpleName() != "Project":
            continue
        for expression in _each(node.projectList()):
            if expression.exprId().equals(wanted) and expression.getClass().getSimpleName() == "Alias":
                child = expression.child()
                if child.getClass().getSimpleName() != "AttributeReference":
                    return None
                wanted = child.exprId()
    return wanted


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.length()))


def _refused(what: str, remedy: str) -> SparkError:
    return SparkError.usual("REAL_TIME_PLAN", what, remedy)
