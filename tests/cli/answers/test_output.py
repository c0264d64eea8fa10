"""What a command shows while it is at work."""

from __future__ import annotations

import subprocess

from support.terminal import Terminal

_PROGRAM = """
from pgonce.cli.answers.output import at_work
with at_work("Replaying dead letters"):
    pass
print("done")
"""


def test_only_a_terminal_shows_that_a_command_is_at_work():
    """It is drawn on stderr; what goes to a file has only the answer."""
    terminal = Terminal("-c", _PROGRAM, stdout=subprocess.PIPE)
    assert terminal.wait() == 0
    assert terminal.process.stdout.read() == b"done\n"
    assert b"Replaying dead letters" in terminal.written
    terminal.process.stdout.close()
    terminal.close()
