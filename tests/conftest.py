"""The fixtures, one noun a module; each module says what it gives."""

# After those that it imports: pytest rewrites the assertions of a plugin before its first import.
pytest_plugins = [
    "support.fixtures.skips",
    "support.fixtures.progress",
    "support.fixtures.thorough",
    "support.fixtures.order",
    "support.fixtures.postgres",
    "support.fixtures.extensions",
    "support.fixtures.proxy",
    "support.fixtures.pgbouncer",
    "support.fixtures.black_hole",
    "support.fixtures.kafka",
    "support.fixtures.spark",
    "support.fixtures.driver",
    "support.fixtures.receiver",
]
