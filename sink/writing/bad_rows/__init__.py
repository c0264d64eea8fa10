"""Finds the rows that cannot be written for their own values, and puts them aside as dead letters."""
