"""Stage rows that are too many for a commit message."""
