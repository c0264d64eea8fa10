"""Connections to Postgres, the settings of their transactions, and the meaning of Postgres's errors."""
