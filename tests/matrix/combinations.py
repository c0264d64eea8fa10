"""
The versions of PySpark, Postgres, Python and Java that are run together.

Pure. Invariant: every version that we support is in at least one combination, and the oldest and newest of each are
crossed; not every cell of the product is run.
"""

from __future__ import annotations

from typing import NamedTuple

NEWEST_SPARK, NEWEST_POSTGRES = "4.3", "18"
_USUAL_PYTHON, USUAL_JAVA = "3.11", "17"

# The Pythons that each PySpark says it runs on, and that pgonce does.
PYTHONS = {
    "3.5": ("3.10", "3.11"),
    "4.0": ("3.10", "3.11", "3.12", "3.13"),
    "4.1": ("3.10", "3.11", "3.12", "3.13", "3.14"),
    "4.2": ("3.10", "3.11", "3.12", "3.13", "3.14"),
    "4.3": ("3.11", "3.12", "3.13", "3.14"),
}
# The Javas that each PySpark is run on besides the usual one.
JAVAS = {"3.5": ("11",), NEWEST_SPARK: ("21", "25")}
POSTGRES = ("14", "15", "16", "17", "18", "19")


class Combination(NamedTuple):
    """One version of each."""

    pyspark: str
    postgres: str
    python: str
    java: str = USUAL_JAVA

    def __str__(self) -> str:
        """As files are called."""
        return f"pyspark{self.pyspark}-postgres{self.postgres}-python{self.python}-java{self.java}"


def combinations() -> list[Combination]:
    """What ``make matrix`` runs: each PySpark, then each Postgres, Python and Java, and the ends that are left."""
    crossed = [
        *(Combination(spark, NEWEST_POSTGRES, _USUAL_PYTHON) for spark in reversed(PYTHONS)),
        *(Combination(NEWEST_SPARK, postgres, _USUAL_PYTHON) for postgres in POSTGRES),
        *(Combination(NEWEST_SPARK, NEWEST_POSTGRES, python) for python in PYTHONS[NEWEST_SPARK]),
        *(Combination(spark, NEWEST_POSTGRES, _USUAL_PYTHON, java) for spark, javas in JAVAS.items() for java in javas),
        Combination("4.2", NEWEST_POSTGRES, "3.10"),
        Combination("4.0", NEWEST_POSTGRES, "3.13"),
        Combination("3.5", POSTGRES[0], "3.10"),
    ]
    return list(dict.fromkeys(crossed))


def only(wanted: str) -> list[Combination]:
    """
    The combinations that ``ONLY`` names: ``pyspark=3.5``, or several parts as in ``"pyspark=4.3 postgres=14"``.

    :raises ValueError: for a part that is none, and where nothing is left.
    """
    parts = [part.partition("=") for part in wanted.split()]
    for name, _, _ in parts:
        if name not in Combination._fields:
            raise ValueError(f"ONLY names {name!r}, and can name {', '.join(Combination._fields)}.")
    found = [one for one in combinations() if all(getattr(one, name) == value for name, _, value in parts)]
    if not found:
        listed = "\n".join(
            " ".join(f"{name}={value}" for name, value in one._asdict().items()) for one in combinations()
        )
        raise ValueError(f"No combination is {wanted!r}. There are:\n{listed}")
    return found
