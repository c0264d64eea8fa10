"""Alters the table: adds columns that it lacks, and widens those that are too narrow."""
