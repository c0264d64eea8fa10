"""Decide which types of the table take a column's values, and how."""
