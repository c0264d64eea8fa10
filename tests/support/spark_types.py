"""Spark's types that can be encoded, drawn by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st
from pyspark.sql import types as t

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=15)
SCALARS = st.sampled_from(
    [
        t.BooleanType(),
        t.ByteType(),
        t.ShortType(),
        t.IntegerType(),
        t.LongType(),
        t.FloatType(),
        t.DoubleType(),
        t.StringType(),
        t.VarcharType(10),
        t.CharType(3),
        t.BinaryType(),
        t.DateType(),
        t.TimestampType(),
        t.TimestampNTZType(),
        t.DayTimeIntervalType(0, 3),
        t.DayTimeIntervalType(1, 1),
        t.VariantType(),
        t.TimeType(6),
        t.TimeType(0),
    ]
) | st.builds(
    lambda precision, scale: t.DecimalType(precision, min(scale, precision)), st.integers(1, 38), st.integers(-5, 38)
)


def containers(inner):
    """Types that are made of others."""
    fields = st.lists(st.tuples(NAMES, inner, st.booleans()), min_size=1, max_size=3, unique_by=lambda field: field[0])
    return (
        st.builds(t.ArrayType, inner, st.booleans())
        | st.builds(t.MapType, st.just(t.StringType()), inner, st.booleans())
        | fields.map(lambda given: t.StructType([t.StructField(*field) for field in given]))
    )


TYPES = st.recursive(SCALARS, containers, max_leaves=4)
