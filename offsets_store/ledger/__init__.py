"""What do we remember of each batch and writer, in tables of the same Postgres?"""
