"""The table that rows go into: its name, what it is, and the lock on it."""
