"""Write rows by key: upserts, and changes with deletes."""
