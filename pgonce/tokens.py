"""
Ready functions for ``passwordFrom``: tokens of clouds in the place of passwords.

Runs where a connection is made. Invariant: each takes a :class:`pgonce.Login` and returns a token that is valid now;
a cloud's client library is imported only when its function is called.
"""

from pgonce.offsets_store.tokens.aws_rds import aws_rds
from pgonce.offsets_store.tokens.azure import azure
from pgonce.offsets_store.tokens.databricks import databricks
from pgonce.offsets_store.tokens.google import google

__all__ = ["aws_rds", "azure", "databricks", "google"]
