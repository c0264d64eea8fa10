"""
Read CHANGELOG.md: its sections, and what a release's notes are.

Pure. Invariant: the section of a version is all that stands below its heading, up to the next one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADING = re.compile(r"^## \[([^\]]+)\](?: - (.+))?$", re.MULTILINE)
UNRELEASED = "Unreleased"


@dataclass(frozen=True)
class Section:
    """One version: ``said`` is what follows it in the heading, which is the date of a release."""

    version: str
    said: str
    text: str

    @property
    def is_dated(self) -> bool:
        """Whether the heading has a date, as that of a release must."""
        return re.fullmatch(r"\d{4}-\d\d-\d\d", self.said) is not None


def sections(changelog: str) -> list[Section]:
    """The sections, in their order."""
    parts = _HEADING.split(changelog)
    return [
        Section(version, said or "", text.strip())
        for version, said, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    ]


def releases(changelog: str) -> list[Section]:
    """The sections of versions, the newest first; without what is not released."""
    return [section for section in sections(changelog) if section.version != UNRELEASED]


def newer_than(changelog: str, version: str) -> list[Section]:
    """The sections above that of a version; all of them if there is none for it."""
    found = sections(changelog)
    names = [section.version for section in found]
    return found[: names.index(version)] if version in names else found


def notes(changelog: str, version: str) -> str:
    """
    What a release says of itself.

    :raises LookupError: if the changelog has no such version, or nothing below it.
    """
    for section in releases(changelog):
        if section.version == version and section.text:
            return section.text
    raise LookupError(f"CHANGELOG.md says nothing of {version}.")
