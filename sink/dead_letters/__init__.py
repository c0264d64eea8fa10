"""Dead letters, listed and written into their tables after all."""
