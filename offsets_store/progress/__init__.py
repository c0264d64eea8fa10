"""Store Spark's progress events, and compare them with the ledger."""
