"""
Which of Spark's types does an older PySpark not have?

Imported anywhere. Invariant: each has a class on every PySpark that we support; where Spark does not have the type, no
column is of that class.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as t


class _VariantType(t.DataType):
    """In the place of a type that came with PySpark 4.0."""


class _CalendarIntervalType(t.DataType):
    """In the place of a type that Python knows from PySpark 4.0 on."""


class _TimeType(t.DataType):
    """In the place of a type that came with PySpark 4.1."""


VariantType: Any = getattr(t, "VariantType", _VariantType)
CalendarIntervalType: Any = getattr(t, "CalendarIntervalType", _CalendarIntervalType)
TimeType: Any = getattr(t, "TimeType", _TimeType)
