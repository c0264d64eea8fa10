"""What do we remember of each batch and writer? Tables in the same Postgres."""
