"""Commits rows and offsets in one transaction."""
