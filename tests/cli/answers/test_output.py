"""What a command shows while it is at work."""

from __future__ import annotations

import subprocess

from support.terminal import Terminal

_PROGRAM = """
import time
from pgonce.cli.answers.output import at_work
with at_work("Replaying [red]dead[/red] letters"):
    print("a letter", flush=True)
    time.sleep(0.8)
print("done")
"""


def test_only_a_terminal_shows_that_a_command_is_at_work():
    """It is drawn on stderr; what goes to a file has only the answer."""
    terminal = Terminal("-c", _PROGRAM, stdout=subprocess.PIPE)
    assert terminal.wait() == 0
    assert terminal.process.stdout.read() == b"a letter\ndone\n"
    assert b"Replaying [red]dead[/red] letters" in terminal.written
    terminal.process.stdout.close()
    terminal.close()
