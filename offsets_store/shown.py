"""
Text that came from outside, as people may see it: in a terminal, in a log, in an error.

Runs everywhere. Invariant: what is shown is one line, and nothing in it makes a terminal obey or hide anything. So a
name can forge neither a line of an answer nor one of a log.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """``text`` with escapes for what ends a line, what a terminal obeys, and marks that turn text around."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
