"""
Print all that is logged at DEBUG, in any logger, while one of our functions makes a token.

Runs in: pytest, which starts a process of its own, because some loggers come to be only when a library is first used.
That process is told the function and the login by its arguments, and prints the token; its log is its standard error.
"""

from __future__ import annotations

import logging
import subprocess
import sys

from pgonce import Login, tokens

# google-auth is silent unless its own logger has a level.
_OWN_LEVELS = ("google",)


def logged_token(name: str, login: Login) -> tuple[str, str]:
    """The token that the function of this name gives, and all that was logged, with what no format shows."""
    arguments = [name, login.host, str(login.port), login.user, login.dbname]
    ended = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.removesuffix("\n"), ended.stderr


class _Everything(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), vars(record), file=sys.stderr)


def main(name: str, host: str, port: str, user: str, dbname: str) -> None:
    """Make one token, with all loggers at DEBUG."""
    logging.basicConfig(level=logging.DEBUG, handlers=[_Everything()])
    for logger in _OWN_LEVELS:
        logging.getLogger(logger).setLevel(logging.DEBUG)
    print(getattr(tokens, name)(Login(host, int(port), user, dbname)))
    logging.getLogger("zq.after").debug("everything is logged")


if __name__ == "__main__":
    main(*sys.argv[1:])
