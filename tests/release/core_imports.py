"""
The core imports nothing of what stands around it: ``tests/repository/sizes.toml`` says which file is the core's.

Runs in: ``make lint``. Invariant: an import counts wherever it stands, in a function and for types alone too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

import grimp
from release.sizes import LIST, listed

CORE = "the core"


def main() -> int:
    """Print each import of the core that leads out of it."""
    wrong = leading_out(grimp.build_graph("pgonce"), listed(LIST.read_text())["rooms"])
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


def leading_out(graph: grimp.ImportGraph, rooms: Mapping[str, Collection[str]]) -> list[str]:
    """A sentence for each import of a room's module by one of the core."""
    return [
        f"{one} is the core's, and imports {other} of {room!r}: have it handed (sink/writing/rooms.py)."
        for one in sorted(graph.modules)
        if room_of(one, rooms) == CORE
        for other in sorted(graph.find_modules_directly_imported_by(one))
        if (room := room_of(other, rooms)) not in (CORE, None)
    ]


def room_of(module: str, rooms: Mapping[str, Collection[str]]) -> str | None:
    """The room of the longest path that leads to the module; None for what is no file of the product's."""
    owners = {path: room for room, paths in rooms.items() for path in paths}
    parts = module.split(".")
    # The two folders are linked into the package.
    parts = parts[1:] if parts[1:2] in (["sink"], ["offsets_store"]) else parts
    paths = ["/".join([*parts, "__init__.py"]), "/".join(parts) + ".py"]
    paths += ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((owners[path] for path in paths if path in owners), None)


if __name__ == "__main__":
    sys.exit(main())
