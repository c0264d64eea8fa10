"""
Store what is remembered of each batch and writer, in tables of the same Postgres.

The names are here, apart from the tables, because a task that stages has no need of SQLAlchemy.
"""

SCHEMA = "pgonce"
VIEWS = ("current_offsets", "replays_skipped", "queries", "health")
