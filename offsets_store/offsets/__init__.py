"""Compare offsets: whether two are the same, and whether one follows the other. Pure."""
