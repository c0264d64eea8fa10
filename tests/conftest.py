"""The fixtures, one noun a module; each module says what it gives."""

from importlib.util import find_spec

# After those that it imports: pytest rewrites the assertions of a plugin before its first import.
pytest_plugins = [
    "support.fixtures.skips",
    "support.fixtures.thorough",
    "support.fixtures.order",
    "support.fixtures.postgres",
    "support.fixtures.stored",
    "support.fixtures.extensions",
    "support.fixtures.proxy",
    "support.fixtures.pgbouncer",
    "support.fixtures.black_hole",
    "support.fixtures.kafka",
    "support.fixtures.object_store",
    "support.fixtures.spark",
    "support.fixtures.sources",
    "support.fixtures.connect",
    "support.fixtures.driver",
    "support.fixtures.browser",
]
# PySpark 3.5, on which `make matrix` runs, has no data sources written in Python, and so nothing that is received.
if find_spec("pyspark.sql.datasource"):
    pytest_plugins.append("support.fixtures.receiver")
