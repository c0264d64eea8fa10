"""Tokens of clouds in the place of passwords, one module for each cloud."""
