"""The ratchet of `make lint`: sizes.toml says how large each room may be, and what is smaller is written down."""

from __future__ import annotations

from release.sizes import LIST, ROOT, listed, set_numbers, to_lower, too_large


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
