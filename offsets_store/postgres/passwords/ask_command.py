"""
What password does ``passwordCommand`` print for a login?

Runs wherever a connection is made. Invariant: no shell reads the command, it ends within a bounded time, and what it
printed is returned and kept nowhere.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any

from .login import Login
from .postgres_url import command_words
from .say_failure import safe_words, source_failed, source_missing

COMMAND_SECONDS = 30.0
"""How long the command may take."""

_AFTER_THE_END_SECONDS = 1.0
_LONGEST_PASSWORD = 64 * 1024
_PIECE = 32 * 1024


def ask_command(command: str, login: Login, *, was_let_in: bool, seconds: float = COMMAND_SECONDS) -> str:
    """
    The password that ``command`` prints.

    In its words, ``{host}``, ``{port}``, ``{user}`` and ``{dbname}`` stand for those of the login; its environment has
    them as ``PGHOST``, ``PGPORT``, ``PGUSER`` and ``PGDATABASE``.

    :param was_let_in: whether this process has connected to the same url before: then a failure may pass.
    :raises ConfigurationError: PASSWORD_SOURCE_MISSING.
    :raises ConnectError: PASSWORD_SOURCE_FAILED.
    """
    words = [_filled_in(word, login) for word in command_words(command)]
    failure, password = _run(words, login, seconds)
    if failure:
        raise source_failed(
            f"The program {_program(words)} of passwordCommand {failure}, so there is no password for role "
            f"{login.user!r}.",
            "Run the command by itself where this process runs, as the same user. It must print the password to "
            f"standard output and exit with 0 within {COMMAND_SECONDS:g} s.",
            may_pass=was_let_in,
        )
    return password


def _filled_in(word: str, login: Login) -> str:
    for name, value in _of_login(login).items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _of_login(login: Login) -> dict[str, str]:
    return {"host": login.host, "port": str(login.port), "user": login.user, "dbname": login.dbname}


def _environment(login: Login) -> dict[str, str]:
    # A command that asks a database itself must not take this process's own password for its own.
    inherited = {name: value for name, value in os.environ.items() if name != "PGPASSWORD"}
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
    return {**inherited, **{names[name]: value for name, value in _of_login(login).items()}}


def _run(words: list[str], login: Login, seconds: float) -> tuple[str, str]:
    """What failed, in words, or nothing; and the password."""
    cannot_start = ""
    try:
        process = subprocess.Popen(  # noqa: S603 (the user's own command; no shell reads it)
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(login),
            # Of its own, so that what the command has started ends with it.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        cannot_start = getattr(error, "strerror", None) or type(error).__name__
    if cannot_start:
        raise source_missing(
            f"The program {_program(words)} of passwordCommand cannot be started in this process: {cannot_start}.",
            "Write the program with its full path. It must be there for every process that connects: on the driver, on "
            "executors that stage rows, and where the command line runs.",
        )
    try:
        printed, complaint = _read_until_it_ends(process, seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        if process.returncode in (None, -signal.SIGKILL):
            return f"took longer than {seconds:g} s and was ended", ""
        return f"ended, but a process that it had started kept its output open for {seconds:g} s", ""
    finally:
        _end(process)
    return _read(process.returncode, printed, complaint)


def _read_until_it_ends(process: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes]:
    """
    What the process prints to standard output and to standard error; of either, little more than a password may have.

    Not ``communicate()``: that keeps all that a command prints, which may be gigabytes within the bounded time.
    """
    until = time.monotonic() + seconds
    printed: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as open_pipes:
        for pipe in printed:
            open_pipes.register(pipe, selectors.EVENT_READ)
        while open_pipes.get_map():
            ready = open_pipes.select(max(0.0, until - time.monotonic()))
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(process.args, seconds)
            for pipe in (key.fileobj for key, _ in ready):
                piece = os.read(pipe.fileno(), _PIECE)  # type: ignore[union-attr]
                if not piece:
                    open_pipes.unregister(pipe)
                elif len(printed[pipe]) <= _LONGEST_PASSWORD:
                    printed[pipe] += piece
    process.wait(max(0.0, until - time.monotonic()))
    return bytes(printed[process.stdout]), bytes(printed[process.stderr])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_AFTER_THE_END_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _read(exit_code: int, printed: bytes, complaint: bytes) -> tuple[str, str]:
    text = printed.decode(errors="replace").removesuffix("\n").removesuffix("\r")
    if exit_code != 0:
        said = safe_words(complaint.decode(errors="replace"), text, *text.split())
        return f"ended with exit code {exit_code}{f' and said: {said}' if said else ''}".rstrip("."), ""
    if not text.strip():
        return "printed nothing", ""
    if len(printed) > _LONGEST_PASSWORD or "\0" in text or "�" in text:
        return "printed what cannot be a password (a NUL, bytes that are not UTF-8, or too many of them)", ""
    return "", text


def _program(words: list[str]) -> str:
    # Only its name: arguments may be secrets.
    return repr(words[0])
