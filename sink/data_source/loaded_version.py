"""
Which version of pgonce is the code that this process has loaded?

Runs in all processes of ``format("pgonce")``. Invariant: it is asked once, when the code is imported, because an
upgrade in place changes what is installed, while older processes live on with the code that they have.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from pgonce.offsets_store.errors import NOTHING

from ..errors import SparkError


def _installed_version() -> str:
    try:
        return version("pgonce")
    except PackageNotFoundError:
        # Sources without their metadata do not say which version they are.
        return ""


# Asked when this module is imported, together with all other code of tasks.
LOADED_VERSION = _installed_version()


def other_version(whose: str, here: str, found: str) -> SparkError:
    """The error for two processes of one query that have loaded different versions."""
    return SparkError(
        "OTHER_VERSION",
        f"{whose} has pgonce {LOADED_VERSION or 'of an unknown version'}, but {here} has {found}.",
        NOTHING,
        "Install the same version on the driver and on every executor, and start the application again: a Python "
        "process goes on with the version that it has loaded, whatever is installed meanwhile.",
    )
