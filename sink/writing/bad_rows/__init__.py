"""Find the rows that cannot be written for their own values, and put them aside as dead letters."""
