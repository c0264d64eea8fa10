"""The ratchet of `make lint`: sizes.toml says how large each room may be, and what is smaller is written down."""

from __future__ import annotations

import pytest
from release.sizes import LIST, ROOT, listed, measured, set_numbers, to_lower, too_large

ROOMS = {"core": ["sink"], "changes": ["sink/writing/by_key"]}
INTERFACE = """\
About.

# Options of format("pgonce") and arguments

mode (mode): for: stream

# Codes of errors

GAP
FENCED

# Commands

pgonce doctor QUERY
pgonce doctor --url TEXT
pgonce doctor --json
pgonce status
"""


@pytest.fixture
def repository(tmp_path):
    """A small repository: three files of the product, a link to one of its folders, a test, two pages."""
    files = {
        "sink/staging.py": 3,
        "sink/writing/by_key/upsert.py": 5,
        "pgonce/main.py": 7,
        "tests/test_a.py": 11,
        "docs/a.md": 2,
        "docs/adr/0001-a.md": 4,
        "pgonce/real_time/java/A.java": 13,
    }
    for name, lines in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("two words\n" * lines)
    (tmp_path / "pgonce" / "sink").symlink_to("../sink")
    (tmp_path / "tests" / "repository").mkdir()
    (tmp_path / "tests" / "repository" / "public_interface.txt").write_text(INTERFACE)
    return tmp_path


def test_a_file_counts_in_the_room_whose_path_is_the_longest(repository):
    """A file that no room has is named, and what stands behind a link counts once."""
    found, strangers = measured(repository, ROOMS)
    assert strangers == ["pgonce/main.py"]
    assert found == {
        "lines: the product": 8,
        "lines: core": 3,
        "lines: changes": 5,
        "lines: Java of real time": 13,
        "lines: tests": 11,
        "error codes": 2,
        "options": 1,
        "commands": 2,
        "flags": 2,
        "pages": 1,
        "words of pages": 4,
        "decisions that still decide": 1,
    }


def test_what_is_larger_or_not_listed_is_wrong():
    """So is a number that nothing measures any more."""
    assert too_large({"flags": 2}, {"flags": 2}) == too_large({"flags": 1}, {"flags": 2}) == []
    assert len(too_large({"flags": 3}, {"flags": 2})) == 1
    assert len(too_large({"flags": 3}, {"options": 2})) == 2


def test_what_is_smaller_is_to_be_lowered():
    """The line can be copied, and `make sizes` writes it and leaves the comment of a number where it is."""
    assert to_lower({"flags": 2, "options": 3}, {"flags": 3, "options": 3}) == [
        'Lower in sizes.toml: "flags" = 2  # was 3'
    ]
    assert set_numbers('# flags\n"flags" = 3  # a reason\n"options" = 3\n', {"flags": 2}) == (
        '# flags\n"flags" = 2  # a reason\n"options" = 3\n'
    )


def test_each_path_of_the_list_is_there():
    """A folder that was moved or removed is listed no more."""
    rooms = listed(LIST.read_text())["rooms"]
    assert [path for paths in rooms.values() for path in paths if not (ROOT / path).exists()] == []
