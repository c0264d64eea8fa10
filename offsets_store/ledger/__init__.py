"""
Store what is remembered of each batch and writer, in tables of the same Postgres.

The names are here, apart from the tables, because a task that stages has no need of SQLAlchemy.
"""

SCHEMA = "pgonce"
STAGING_SCHEMA = "pgonce_staging"
"""Where roles may create tables: who may do so in a schema may create functions there, which others might call."""
VIEWS = ("current_offsets", "queries", "health")
