"""How ``format("pgonce")`` runs: what Spark calls, what tasks do, and the commit of what they hand over."""

from importlib.util import find_spec

from ..errors import without_data_sources

# Before any module of this folder is imported: the error that Python itself would raise does not mention Spark.
if find_spec("pyspark.sql.datasource") is None:
    raise ImportError(str(without_data_sources()))
