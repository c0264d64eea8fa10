"""Which batch is this? From the checkpoint, or from the running query."""
