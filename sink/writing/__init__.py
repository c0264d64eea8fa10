"""Write the rows of a batch into its target tables."""
