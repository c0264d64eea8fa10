"""When are two offsets the same, and does one follow the other? Pure."""
