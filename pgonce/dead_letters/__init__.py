"""List dead letters, and write their rows into their tables after all."""
