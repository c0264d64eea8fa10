"""Decide what a batch is: new, a replay, or neither. Pure."""
