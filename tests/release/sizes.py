"""
How large the product may be: ``tests/repository/sizes.toml`` has the numbers, and they only go down.

Runs in: ``make lint``. Invariant: each file of the product belongs to the core or to one room, by the longest path in
the list that leads to it, so a new file counts where its folder does.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "repository" / "sizes.toml"
_PRODUCT = ("sink", "offsets_store", "pgonce")


def main() -> int:
    """Print what is larger than the list allows, and what in the list can be lowered; 1 if anything is larger."""
    sizes = listed(LIST.read_text())
    found, strangers = measured(ROOT, sizes["rooms"])
    allowed = sizes["most"]
    wrong = [*(f"{path} belongs to no room of {LIST.name}." for path in strangers), *too_large(found, allowed)]
    print(*wrong, *to_lower(found, allowed), sep="\n", end="\n" if wrong or found != allowed else "")
    return 1 if wrong else 0


def listed(text: str) -> dict[str, Any]:
    """The list: ``rooms`` with the paths of each, and ``most`` with the numbers."""
    return tomllib.loads(text)


def measured(root: Path, rooms: Mapping[str, Iterable[str]]) -> tuple[dict[str, int], list[str]]:
    """
    Measure a repository.

    :param rooms: the files and folders of each room, as paths under ``root``.
    :return: each number by its name, in the order of the list, and the files that belong to no room.
    """
    owners = {path: room for room, paths in rooms.items() for path in paths}
    lines: Counter[str] = Counter()
    strangers = []
    for file in _python(root, _PRODUCT):
        path = file.relative_to(root)
        room = next((owners[str(one)] for one in (path, *path.parents) if str(one) in owners), None)
        if room is None:
            strangers.append(str(path))
        else:
            lines[room] += _lines(file)
    interface = _interface((root / "tests" / "repository" / "public_interface.txt").read_text())
    commands = interface["Commands"]
    pages = [page for page in sorted((root / "docs").rglob("*.md")) if "adr" not in page.parts]
    return {
        "lines: the product": sum(lines.values()),
        **{f"lines: {room}": lines[room] for room in rooms},
        "lines: Java of real time": sum(map(_lines, (root / "pgonce" / "real_time").rglob("*.java"))),
        "lines: tests": sum(map(_lines, _python(root, ("tests",)))),
        "error codes": len(interface["Codes of errors"]),
        "options": len(interface['Options of format("pgonce") and arguments']),
        "commands": len({line.split()[1] for line in commands}),
        "flags": sum(line.split()[2:3] != [] and line.split()[2].startswith("-") for line in commands),
        "pages": len(pages),
        "words of pages": sum(len(page.read_text().split()) for page in pages),
        "decisions that still decide": len(list((root / "docs" / "adr").glob("0*.md"))),
    }, strangers


def too_large(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """A sentence for each number above what is allowed, or missing on one side."""
    return [
        *(f"sizes.toml has no number for {name!r}." for name in found if name not in allowed),
        *(f"sizes.toml has a number for {name!r}, which nothing measures." for name in allowed if name not in found),
        *(
            f"{name}: {number:,}, and sizes.toml allows {allowed[name]:,}. Find what can go, or raise the number with "
            "a sentence that says what it buys."
            for name, number in found.items()
            if number > allowed.get(name, number)
        ),
    ]


def to_lower(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """A line for each number that can go down."""
    return [
        f'Lower in sizes.toml: "{name}" = {number}  # was {allowed[name]}'
        for name, number in found.items()
        if number < allowed.get(name, number)
    ]


def _python(root: Path, folders: Iterable[str]) -> list[Path]:
    """The files of these folders, but not behind links: the folder ``pgonce`` has one to each of the others."""
    return [
        file
        for folder in folders
        for file in sorted((root / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in file.parents if parent != root and root in parent.parents)
    ]


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def _interface(text: str) -> dict[str, list[str]]:
    """The lines under each heading of the list of what is public."""
    parts = text.split("\n# ")[1:]
    return {part.partition("\n")[0]: [line for line in part.splitlines()[1:] if line] for part in parts}


def set_numbers(text: str, found: Mapping[str, Any]) -> str:
    """The list with these numbers under ``[most]``; what else stands there stays."""
    lines = []
    for line in text.splitlines():
        name = line.partition('" = ')[0].removeprefix('"')
        known = line.startswith('"') and name in found
        comment = f"  #{line.partition('#')[2]}" if known and "#" in line else ""
        lines.append(f'"{name}" = {found[name]}{comment}' if known else line)
    return "\n".join(lines) + "\n"


def lower() -> None:
    """Write the numbers that have become smaller into the list."""
    sizes = listed(LIST.read_text())
    found, _ = measured(ROOT, sizes["rooms"])
    LIST.write_text(
        set_numbers(
            LIST.read_text(), {name: min(number, sizes["most"].get(name, number)) for name, number in found.items()}
        )
    )


if __name__ == "__main__":
    if "--lower" in sys.argv:
        lower()
    sys.exit(main())
