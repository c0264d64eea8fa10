"""Read what the rows of a change feed say is to be done."""
