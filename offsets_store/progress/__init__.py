"""Stores Spark's progress events, and compares them with the ledger."""
