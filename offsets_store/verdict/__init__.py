"""What is this batch: new, a replay, or neither? Pure."""
