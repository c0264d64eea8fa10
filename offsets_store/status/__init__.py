"""Tell where each query stands, and where a new one may go on."""
