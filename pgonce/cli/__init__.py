"""The command ``pgonce``."""
