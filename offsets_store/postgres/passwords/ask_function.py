"""
What password does the function of ``passwordFrom`` give for a login?

Runs wherever a connection is made, executors and the command line included. Invariant: what the function gave is
returned and kept nowhere, and an error of it comes out as words, without its frames.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...errors import PgonceError
from .login import Login
from .say_failure import safe_words, source_failed, source_missing

_READY = "pgonce."
_WHERE_IT_MUST_BE = (
    "The module must be importable in every process that connects: on the driver, on executors that stage rows "
    "(install it there, or send it with --py-files), and where the command line runs (PYTHONPATH)."
)


def ask_function(name: str, login: Login, *, was_let_in: bool) -> str:
    """
    The password that the function called ``name`` (``module:function``) gives.

    :param was_let_in: whether this process has connected to the same url before: then a failure may pass.
    :raises ConfigurationError: PASSWORD_SOURCE_MISSING.
    :raises ConnectError: PASSWORD_SOURCE_FAILED.
    """
    function = _found(name)
    given: Any = None
    failure = ""
    try:
        given = function(login)
    except PgonceError:
        # One of ours, which says in words what is missing.
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 (somebody else's code)
        failure = f"raised {_described(error, name)}"
    if not failure:
        failure = _no_password(given)
    if failure:
        # Raised here, where no exception of the function is being handled: its frames may hold secrets.
        raise source_failed(
            f"The function {name} of passwordFrom {failure}, so there is no password for role {login.user!r}.",
            "Call the function by itself in this process; its full error is not repeated here, because it may hold "
            "secrets. It takes one argument (pgonce.Login) and returns the password as a str.",
            may_pass=was_let_in,
        )
    # Not str(): a type of somebody else's may do anything there.
    return str.__str__(given)


def _found(name: str) -> Callable[[Login], Any]:
    module_name, _, function_name = name.partition(":")
    missing = ""
    found: Any = None
    try:
        found = getattr(import_module(module_name), function_name, None)
    except ModuleNotFoundError as error:
        is_itself = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        missing = f"there is no module {error.name}" if is_itself else f"module {module_name} needs {error.name}"
    except PgonceError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 (somebody else's code)
        missing = f"module {module_name} cannot be imported: it raised {_described(error, name)}"
    if not missing and not callable(found):
        missing = f"module {module_name} has no function {function_name}"
    if missing:
        raise source_missing(f"passwordFrom={name} cannot be used in this process: {missing}.", _WHERE_IT_MUST_BE)
    function: Callable[[Login], Any] = found
    return function


def _no_password(given: object) -> str:
    """Why this cannot be a password, in words; nothing where it can."""
    if given is None:
        return "returned nothing (None)"
    if not isinstance(given, str):
        return f"returned a {type(given).__name__}, not a str"
    if not given.strip():
        return "returned an empty text"
    if "\0" in given:
        return "returned a text with a NUL, which no password has"
    # psycopg would raise a UnicodeEncodeError, which holds the whole connection string, and shows it in its repr().
    if any("\ud800" <= character <= "\udfff" for character in given):
        return "returned a text that is not valid Unicode (it has surrogates, as bytes that were not UTF-8 leave them)"
    return ""


def _described(error: BaseException, name: str) -> str:
    # What a user's own function says may be the password itself, and nothing tells it from other words.
    said = safe_words(str(error)) if name.startswith(_READY) else ""
    return f"{type(error).__name__}: {said}".rstrip(".") if said else type(error).__name__
