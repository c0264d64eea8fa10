"""Where checkpoint and ledger stand to each other, and how the one is mended from the other."""
