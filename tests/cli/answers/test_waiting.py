"""What a command shows while it is at work."""

from __future__ import annotations

import subprocess

from support.terminal import Terminal

_PROGRAM = """
import time
from pgonce.cli.answers import waiting
waiting.AFTER_SECONDS = {after}
with waiting.at_work("Replaying [red]dead[/red] letters", {total}) as work:
    for number in range(3):
        with work.aside():
            print("letter", number, flush=True)
        work.advance()
        time.sleep({seconds})
print("done")
"""


def run(after=0.05, total=3, seconds=0.4, **others):
    """The program in a terminal, once it has ended."""
    terminal = Terminal("-c", _PROGRAM.format(after=after, total=total, seconds=seconds), **others)
    assert terminal.wait() == 0
    return terminal


def test_how_much_is_done():
    """What is done, and how much of it; what is printed meanwhile stands in lines of its own."""
    terminal = run()
    assert b"Replaying [red]dead[/red] letters" in terminal.written
    assert b"2/3" in terminal.written
    for line in (b"letter 0\r\n", b"letter 1\r\n", b"letter 2\r\n"):
        assert line in terminal.written
    assert terminal.written.endswith(b"done\r\n")
    terminal.close()


def test_standard_output_stays_as_it_is():
    """What goes to a file has only the answer; and where stderr is no terminal either, nothing is drawn at all."""
    terminal = run(stdout=subprocess.PIPE)
    assert terminal.process.stdout.read() == b"letter 0\nletter 1\nletter 2\ndone\n"
    assert b"Replaying" in terminal.written
    assert b"letter" not in terminal.written.replace(b"letters", b"")
    terminal.process.stdout.close()
    terminal.close()
