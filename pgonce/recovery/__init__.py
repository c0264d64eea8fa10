"""Make a stopped query's checkpoint and the ledger agree again."""
