"""The fixtures, one noun a module; each module says what it gives."""

# After those that it imports: pytest rewrites the assertions of a plugin before its first import.
pytest_plugins = [
    "fix_no_skips",
    "fix_postgres",
    "fix_proxy",
    "fix_pgbouncer",
    "fix_black_hole",
    "fix_kafka",
    "fix_spark",
    "fix_driver",
    "fix_receiver",
]
