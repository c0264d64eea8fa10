"""Let a table that another query has filled take the place of the living one."""
