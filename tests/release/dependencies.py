"""
What `pip install pgonce` brings: how much it is, and under which licences.

Runs in: the environment that has the wheel and all that its extras name. Invariant: only what pgonce needs counts, and
nothing that the tests have installed as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageMetadata, distribution, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# A limit is what was measured (21 packages, 236 MB; the wheel has 0.92 MB), and a tenth more. pyarrow is 171 MB of it.
MOST_PACKAGES = 23
MOST_MEGABYTES = 260
MOST_WHEEL_MEGABYTES = 1.02

# What a user may install next to Apache-2.0 without asking a lawyer. psycopg is a library under the LGPL that is
# imported as it is; certifi's list of certificates is under the MPL.
ALLOWED = {
    "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "LGPL-3.0-only", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0",
}  # fmt: skip
# Words for licences in metadata that has no SPDX expression yet.
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def extras() -> list[str]:
    """The extras of the installed pgonce."""
    return metadata("pgonce").get_all("Provides-Extra") or []


def needed(with_extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """pgonce, and all that pip would install with it here, by name."""
    found: dict[str, Distribution] = {}
    todo = [("pgonce", extra) for extra in ("", *with_extras)]
    seen = set()
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = distribution(name)
        for requirement in map(Requirement, found[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return found


def megabytes(distributions: Iterable[Distribution]) -> float:
    """The size of what they install, without the bytecode that pip makes of it."""
    files = (file for each in distributions for file in each.files or ())
    return sum(file.size or 0 for file in files if file.suffix != ".pyc") / 1e6


def over_budget(packages: int, installed: float, wheel: float) -> list[str]:
    """What is more than it may be."""
    measured = (
        (packages, MOST_PACKAGES, "packages that `pip install pgonce` brings"),
        (installed, MOST_MEGABYTES, "MB that it brings"),
        (wheel, MOST_WHEEL_MEGABYTES, "MB of the wheel"),
    )
    return [f"{found:.4g} {what}: {most} at most." for found, most, what in measured if found > most]


def budget(wheel: Path) -> list[str]:
    """The same of what is installed here, and of the built wheel."""
    plain = needed()
    return over_budget(len(plain), megabytes(plain.values()), wheel.stat().st_size / 1e6)


def licence_of(package: PackageMetadata) -> str:
    """An SPDX expression if its metadata has one, or what it says in its other fields; several are any of them."""
    if package.get("License-Expression"):
        return str(package["License-Expression"])
    classifiers = [each for each in package.get_all("Classifier") or () if each.startswith("License :: ")]
    said = [each.rpartition(" :: ")[2] for each in classifiers] or (package.get("License") or "").splitlines()[:1]
    return " OR ".join(_SPDX.get(each, each) for each in said) or "unknown"


def is_allowed(licence: str) -> bool:
    """Whether an expression is allowed: one of its alternatives is, with all of its parts."""
    return any(
        all(part in ALLOWED for part in re.split(r"\s+AND\s+", alternative.strip("() ")))
        for alternative in re.split(r"\s+OR\s+", licence)
    )


def refused(licences: Mapping[str, str]) -> list[str]:
    """The packages whose licences are not in the list."""
    wrong = {name: licence for name, licence in licences.items() if not is_allowed(licence)}
    return [f"{name} is under {licence!r}, which is not in the list of tests/release/dependencies.py."
            for name, licence in sorted(wrong.items())]  # fmt: skip


def licences() -> dict[str, str]:
    """The licence of each package that pgonce can bring, with all of its extras."""
    return {name: licence_of(each.metadata) for name, each in needed(extras()).items()}
