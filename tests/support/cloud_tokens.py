"""
The functions of examples/tokens, asked for a password as a connection asks them.

Runs in: pytest. Invariant: they run as they stand there. For what is logged, a process of its own is started,
because some loggers come to be only when a library is first used: it is told the function and the login by its
arguments, and prints the token; its log is its standard error.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from pgonce import Login
from pgonce.offsets_store.postgres.passwords import ask_function

# google-auth is silent unless its own logger has a level.
_OWN_LEVELS = ("google",)
_TOKENS = Path(__file__).parents[2] / "examples" / "tokens"


def example_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of examples/tokens with this name, new in this process."""
    monkeypatch.syspath_prepend(_TOKENS)
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module(name)
    # So that it is forgotten after the test.
    monkeypatch.setitem(sys.modules, name, module)
    return module


def token_of(module: ModuleType, login: Login) -> str:
    """What a connection gets of the module's function."""
    return ask_function(f"{module.__name__}:password", login, was_let_in=False)


def logged_token(module: ModuleType, login: Login) -> tuple[str, str]:
    """The token that the function gives, and all that was logged at DEBUG, with what no format shows."""
    arguments = [Path(module.__file__ or "").parent, module.__name__, login.host, login.port, login.user, login.dbname]
    ended = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.removesuffix("\n"), ended.stderr


class _Everything(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), vars(record), file=sys.stderr)


def main(folder: str, name: str, host: str, port: str, user: str, dbname: str) -> None:
    """Make one token, with all loggers at DEBUG."""
    logging.basicConfig(level=logging.DEBUG, handlers=[_Everything()])
    for logger in _OWN_LEVELS:
        logging.getLogger(logger).setLevel(logging.DEBUG)
    sys.path.insert(0, folder)
    print(ask_function(f"{name}:password", Login(host, int(port), user, dbname), was_let_in=False))
    logging.getLogger("zq.after").debug("everything is logged")


if __name__ == "__main__":
    main(*sys.argv[1:])
