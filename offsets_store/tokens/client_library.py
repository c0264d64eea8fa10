"""
Is the client library of a cloud installed in this process?

Runs wherever a connection is made. Invariant: a library is imported only when its cloud is asked for a token.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import ConfigurationError


def client_library(module: str, package: str, extra: str) -> Any:
    """
    The module of a cloud's client library.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, where the package is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        pass
    raise not_there(
        f"The tokens of passwordFrom=pgonce.tokens:{extra} need the package {package}, which is not installed here.",
        f"Run `pip install 'pgonce[{extra}]'` for every process that connects: on the driver, on executors that stage "
        "rows, and where the command line runs.",
    )


def not_there(what: str, remedy: str) -> ConfigurationError:
    """The error for something that a token cannot be made without."""
    return ConfigurationError("PASSWORD_SOURCE_MISSING", what, "Nothing was written.", remedy)
