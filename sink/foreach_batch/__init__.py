"""How ``foreachBatch`` runs: a writer for one table, and a decorator for the user's own function."""
