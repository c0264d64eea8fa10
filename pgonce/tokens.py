"""
Ready functions for ``passwordFrom``: tokens of clouds in the place of passwords.

Runs where a connection is made. Invariant: each takes a :class:`pgonce.Login` and returns a token that is valid now;
a cloud's client library is imported only when its function is called.
"""

from pgonce.offsets_store.postgres.tokens import aws_rds, azure, databricks, google

__all__ = ["aws_rds", "azure", "databricks", "google"]
