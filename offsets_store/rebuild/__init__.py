"""Exchange a table for one that another query has filled."""
