"""Alter the table: add columns that it lacks, and widen those that are too narrow."""
