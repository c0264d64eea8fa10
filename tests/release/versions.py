"""
Compare what names a version: pyproject.toml, CHANGELOG.md, CITATION.cff, the recipe for conda and the tag; and the list
of what is public.

Pure, but for `Repository`, which asks git. Invariant: what is returned is a list of sentences, and is empty if all
agree.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from release.changelog import Section, newer_than, releases

RECIPE = "tests/release/conda/recipe.yaml"
INTERFACE = "tests/repository/public_interface.txt"
# Who may sign a release, in the form of ssh-keygen(1), "ALLOWED SIGNERS".
SIGNERS = ".github/allowed_signers"


@dataclass(frozen=True)
class Repository:
    """A clone; tags of releases are ``v`` and the version."""

    root: Path

    def git(self, *command: str) -> str:
        """What git says; an empty string where it fails."""
        done = subprocess.run(["git", *command], cwd=self.root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def tags_here(self) -> list[str]:
        """The tags of releases at HEAD."""
        return self.git("tag", "--points-at", "HEAD", "--list", "v*").split()

    def last_release(self) -> str:
        """The newest tag of a release below HEAD; an empty string if there is none."""
        return self.git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")

    def why_unsigned(self, tag: str) -> str:
        """What git says of a tag that no allowed key has signed; an empty string if one has."""
        if self.git("cat-file", "-t", f"refs/tags/{tag}") != "tag":
            return f"{tag} is not an annotated tag, so it has no signature."
        signers = f"gpg.ssh.allowedSignersFile={self.root / SIGNERS}"
        command = ["git", "-c", signers, "-c", "gpg.format=ssh", "verify-tag", tag]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"{tag}: {done.stderr.strip() or 'not verified'}"


def version_in(pyproject: str) -> str:
    """The version in the text of pyproject.toml, CITATION.cff or the recipe for conda."""
    found = re.search(r'^ *version(?: = |: )"?([^"\n]+)"?$', pyproject, re.MULTILINE)
    if found is None:
        raise LookupError("There is no version.")
    return found[1]


def disagreements(version: str, others: dict[str, str], changelog: list[Section], tags: list[str]) -> list[str]:
    """What does not agree with pyproject.toml's ``version``; a commit with a tag also needs a date."""
    wrong = [f"{file} has version {other}, and pyproject.toml {version}." for file, other in others.items()
             if other != version]  # fmt: skip
    newest = changelog[0] if changelog else Section("none", "", "")
    if newest.version != version:
        wrong.append(f"The newest release in CHANGELOG.md is {newest.version}, and pyproject.toml has {version}.")
    wrong += [f"HEAD has the tag {tag}, and pyproject.toml version {version}." for tag in tags if tag != f"v{version}"]
    if tags and not newest.is_dated:
        wrong.append(f"HEAD has the tag {tags[0]}, and the heading of {newest.version} in CHANGELOG.md has no date.")
    return wrong


def versions(repository: Repository) -> list[str]:
    """What disagrees in a clone."""

    def text(name: str) -> str:
        return (repository.root / name).read_text()

    return disagreements(
        version_in(text("pyproject.toml")),
        {name: version_in(text(name)) for name in ("CITATION.cff", RECIPE)},
        releases(text("CHANGELOG.md")),
        repository.tags_here(),
    )


def undeclared(before: str, now: str, since: list[Section]) -> list[str]:
    """The changes of what is public whose names no section of the changelog since the last release has."""
    old, new = set(before.splitlines()), set(now.splitlines())
    told = "\n".join(section.text for section in since)
    changed = [*(f"- {line}" for line in sorted(old - new)), *(f"+ {line}" for line in sorted(new - old))]
    untold = [line for line in changed if not re.search(rf"(?<!\w){re.escape(_name_in(line[2:]))}(?!\w)", told)]
    if not untold:
        return []
    return [
        "What is public has changed since the last release, and CHANGELOG.md does not name it:",
        *untold[:20],
        *([f"and {len(untold) - 20} lines more"] if len(untold) > 20 else []),
    ]


def _name_in(line: str) -> str:
    """What a line of the list is about: an option of a command, a command, or the name that the line begins with."""
    words = line.removeprefix("class ").split()
    if words[0] == "pgonce":
        return next((word.rstrip(",") for word in words[2:] if word.startswith("-")), " ".join(words[:2]))
    return re.split(r"[(:]", words[0])[0]


def interface(repository: Repository) -> list[str]:
    """The same of a clone, against the newest tag below HEAD."""
    last = repository.last_release()
    if not last:
        return []
    since = newer_than((repository.root / "CHANGELOG.md").read_text(), last.removeprefix("v"))
    before, now = repository.git("show", f"{last}:{INTERFACE}"), (repository.root / INTERFACE).read_text().strip()
    return undeclared(before, now, since)
