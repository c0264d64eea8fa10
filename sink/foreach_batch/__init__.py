"""How ``foreachBatch`` runs: a writer for one table, and a decorator for a function of the user's."""
