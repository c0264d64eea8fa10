"""Commit rows and offsets in one transaction."""
