"""The command that ``passwordCommand`` names."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
import tracemalloc

import psutil
import pytest

from pgonce.offsets_store.errors import ConfigurationError, ConnectError
from pgonce.offsets_store.postgres.passwords.ask_command import ask_command
from pgonce.offsets_store.postgres.passwords.login import Login

# By its name, because a traceback shows the lines of this file.
ARGUMENT = "zq7argument"
LOGIN = Login("db.example", 5432, "streamer; rm x", "shop")


def python(program: str, *arguments: str) -> str:
    """The command that runs a program of Python."""
    return shlex.join([sys.executable, "-c", program, *arguments])


def ask(command: str, seconds: float = 30) -> str:
    """The password that a command gives."""
    return ask_command(command, LOGIN, was_let_in=False, seconds=seconds)


@pytest.mark.parametrize(
    ("printed", "password"),
    [("zq7\\n", "zq7"), ("zq7", "zq7"), ("zq7\\r\\n", "zq7"), (" zq7 \\n\\n", " zq7 \n"), ("zq\\u00e9\\n", "zqé")],
)
def test_the_password_is_what_is_printed_without_the_last_newline(printed, password):
    """Everything else belongs to the password, spaces too."""
    assert ask(python(f"import sys; sys.stdout.buffer.write('{printed}'.encode())")) == password


def test_no_shell_reads_the_command():
    """What would mean something to a shell is an argument like any other."""
    assert (
        ask(python("import sys; print(sys.argv[1:])", "$HOME", "a;b", "`id`", "*")) == "['$HOME', 'a;b', '`id`', '*']"
    )


def test_the_login_is_in_the_words_and_in_the_environment_and_other_passwords_are_not(monkeypatch):
    """A name with odd characters stays one argument, and PGPASSWORD is not handed on."""
    monkeypatch.setenv("PGPASSWORD", "zq7")
    monkeypatch.setenv("PGHOST", "another")
    names = ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD")
    show = f"import os,sys; print(sys.argv[1:], [os.environ.get(n) for n in {names}])"
    assert ask(python(show, "--host={host}:{port}", "{user}", "{dbname}", "{other}")) == (
        "['--host=db.example:5432', 'streamer; rm x', 'shop', '{other}'] "
        "['db.example', '5432', 'streamer; rm x', 'shop', None]"
    )


def test_a_slow_command_is_ended_with_its_children():
    """Nobody waits longer than the bound, and nothing of the command outlives it."""
    sleeper = (
        "import subprocess,sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', 'zq7child'])"
    )
    began = time.monotonic()
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED.*took longer than 2 s"):
        ask(python(sleeper), seconds=2)
    assert time.monotonic() - began < 10
    time.sleep(0.2)
    left = [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if "zq7child" in (process.info["cmdline"] or ())
    ]
    assert [process for process in left if process.info["status"] != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "import sys; print('zq7out'); sys.exit('no: password=zq7err token zq7out AKIAZQ7zq7AB12CD34EF')",
            "exit code 1 and said: no:",
        ),
        ("import sys; print('zq7out'); sys.exit(3)", "ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended with exit code -9"),
        ("print()", "printed nothing"),
        ("pass", "printed nothing"),
        ("import sys; sys.stdout.buffer.write(b'zq7\\0x')", "cannot be a password"),
        ("import sys; sys.stdout.buffer.write(b'zq7\\xff')", "cannot be a password"),
        ("print('zq7' * 100000)", "cannot be a password"),
    ],
)
def test_a_command_that_gives_no_password_is_an_error_in_words(program, said):
    """The error has its exit code and its complaint, and neither its arguments, nor what it printed, nor any secret."""
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED") as failed:
        ask(python(program, ARGUMENT))
    assert said in str(failed.value)
    shown = "".join(traceback.format_exception(failed.value)).lower()
    assert "zq7" not in shown
    assert failed.value.__context__ is None


@pytest.mark.parametrize("command", ["/no/such/program --key zq7", "/ zq7", "'nul\0' zq7"])
def test_a_program_that_is_not_there_is_an_error_for_good(command):
    """The error names the program and not its arguments."""
    with pytest.raises(ConfigurationError, match="PASSWORD_SOURCE_MISSING") as missing:
        ask(command)
    assert "zq7" not in "".join(traceback.format_exception(missing.value))
    assert missing.value.__context__ is None


def test_a_command_that_prints_without_end_takes_no_memory():
    """What is more than a password may have is read and dropped."""
    tracemalloc.start()
    try:
        with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED.*took longer than 1 s"):
            ask(python("while True: print('zq7' * 10000)"), seconds=1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20


def test_a_child_that_keeps_the_output_open_is_named_as_the_reason():
    """The command itself was quick, so the error does not say that it was slow."""
    child = "import subprocess; print('zq7'); subprocess.Popen(['sleep', '60'])"
    with pytest.raises(ConnectError, match=r"PASSWORD_SOURCE_FAILED.* ended, but a process that it had started kept"):
        ask(python(child), seconds=5)


def test_a_variable_before_the_program_is_refused_without_its_value():
    """A shell would set it; without one it would be the program's name, which errors show."""
    with pytest.raises(ConfigurationError, match=r"BAD_OPTION.*begins with VAULT_TOKEN=\.\.\.") as refused:
        ask("VAULT_TOKEN=zq7 vault read db")
    assert "zq7" not in str(refused.value)
