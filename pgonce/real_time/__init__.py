"""How rows get into Postgres in Spark's real-time and continuous modes: begin with ``start.py``."""
