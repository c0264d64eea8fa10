"""Store what is remembered of each batch and writer, in tables of the same Postgres."""
