"""What `make release-check` asks: versions, the changelog, what is public, sizes, licences, and the tag's signature."""

from __future__ import annotations

import subprocess
from email.message import Message
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from release.changelog import Section, notes, releases
from release.dependencies import MOST_MEGABYTES, MOST_PACKAGES, is_allowed, licence_of, needed, refused
from release.versions import INTERFACE, RECIPE, SIGNERS, Repository, disagreements, interface, undeclared, versions

ROOT = Path(__file__).parents[2]
CHANGELOG = """\
# Changelog

## [Unreleased]

- A line.

## [0.2.0] - 2027-01-31

### Fixed

- Another.

## [0.1.0] - not released yet

The first.
"""


class TestChangelog:
    def test_the_notes_of_a_release(self):
        """They are what stands below its heading; a version without any has none."""
        assert notes(CHANGELOG, "0.2.0") == "### Fixed\n\n- Another."
        with pytest.raises(LookupError, match="nothing of 0.3.0"):
            notes(CHANGELOG, "0.3.0")


class TestVersions:
    @pytest.mark.parametrize(
        ("version", "cited", "tags", "says"),
        [
            ("0.2.0", "0.2.0", ["v0.2.0"], []),
            ("0.2.0", "0.2.0", [], []),
            ("0.3.0", "0.3.0", [], ["CHANGELOG.md is 0.2.0"]),
            ("0.2.0", "0.1.0", [], ["CITATION.cff has version 0.1.0"]),
            ("0.2.0", "0.2.0", ["v0.2.1"], ["tag v0.2.1"]),
        ],
    )
    def test_what_disagrees_is_named(self, version, cited, tags, says):
        """pyproject.toml, the newest release in the changelog, the citation and each tag name one version."""
        wrong = disagreements(version, {"CITATION.cff": cited}, releases(CHANGELOG), tags)
        assert len(wrong) == len(says)
        assert all(part in sentence for part, sentence in zip(says, wrong, strict=True))

    def test_the_recipe_for_conda_has_the_same_version(self, clone):
        """It is a file of its own, which nothing else would keep up to date."""
        assert versions(Repository(clone)) == []
        (clone / RECIPE).write_text('context:\n  version: "0.0.9"\n')
        [wrong] = versions(Repository(clone))
        assert RECIPE in wrong

    def test_a_tag_needs_a_date(self):
        """What has a tag is released, so the changelog has to say when."""
        [wrong] = disagreements("0.1.0", {}, releases(CHANGELOG)[1:], ["v0.1.0"])
        assert "no date" in wrong


@pytest.fixture
def clone(tmp_path):
    """A repository with a release, 0.1.0, and a commit after it."""
    (tmp_path / "tests" / "repository").mkdir(parents=True)
    (tmp_path / ".github").mkdir()
    (tmp_path / RECIPE).parent.mkdir(parents=True)
    (tmp_path / RECIPE).write_text('context:\n  version: "0.1.0"\n')
    (tmp_path / "pyproject.toml").write_text('version = "0.1.0"\n')
    (tmp_path / "CITATION.cff").write_text("version: 0.1.0\n")
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [0.1.0] - 2026-12-01\n\nThe first.\n")
    (tmp_path / INTERFACE).write_text("pgonce init\npgonce status\n")
    run(tmp_path, "init", "--quiet")
    commit(tmp_path, "one")
    run(tmp_path, "tag", "v0.1.0")
    commit(tmp_path, "two")
    return tmp_path


def run(folder, *command):
    """Run git as somebody."""
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "tag.gpgSign=false"]
    subprocess.run(["git", *who, *command], cwd=folder, check=True, capture_output=True)


def commit(folder, message):
    """Record all that there is."""
    run(folder, "add", "--all")
    run(folder, "-c", "commit.gpgSign=false", "commit", "--quiet", "--allow-empty", "--message", message)


class TestWhatIsPublic:
    def test_a_change_has_to_be_in_the_changelog(self, clone):
        """Each name that changed has to be told; the lines of those that are not are shown."""
        assert interface(Repository(clone)) == []
        (clone / INTERFACE).write_text("pgonce init\npgonce state\n")
        [first, *changed] = interface(Repository(clone))
        assert "does not name it" in first
        assert changed == ["- pgonce status", "+ pgonce state"]
        told = "## [Unreleased]\n\n- {}.\n\n## [0.1.0] - 2026-12-01\n\nThe first, with `pgonce state`.\n"
        (clone / "CHANGELOG.md").write_text(told.format("`pgonce status` is gone"))
        assert interface(Repository(clone))[1:] == ["+ pgonce state"]
        (clone / "CHANGELOG.md").write_text(told.format("`pgonce status` is now `pgonce state`"))
        assert interface(Repository(clone)) == []

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("class Finding", "`Finding` is new"),
            ("Finding.severity: str", "`Finding.severity` is new"),
            ("retain_batches (retainBatches): for: stream", "`retain_batches` has another default"),
            ("pgonce status --sort", "`--sort` orders the lines"),
            ("pgonce_rows_total counter query", "`pgonce_rows_total` counts rows"),
        ],
    )
    def test_what_a_line_is_about(self, line, told):
        """The name of a class, a field, an option, an argument or a metric is enough; another word is not."""
        assert undeclared("", line, [Section("Unreleased", "", told)]) == []
        assert undeclared("", line, [Section("Unreleased", "", "Much is new")]) != []

    def test_the_commit_of_a_release_is_compared_with_the_release_before(self, clone):
        """There, what was under Unreleased stands below the new version."""
        (clone / INTERFACE).write_text("pgonce init\n")
        (clone / "CHANGELOG.md").write_text(
            "## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\nWithout `pgonce status`.\n\n## [0.1.0] - x\n"
        )
        commit(clone, "three")
        run(clone, "tag", "v0.2.0")
        assert interface(Repository(clone)) == []
        assert versions(Repository(clone)) != []


class TestTheTag:
    @pytest.fixture
    def key(self, clone, tmp_path_factory):
        """A key that may sign."""
        file = tmp_path_factory.mktemp("keys") / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
        (clone / SIGNERS).write_text(f'a@example.com namespaces="git" {file.with_suffix(".pub").read_text()}')
        return file

    def sign(self, clone, key, tag):
        """A signed tag at HEAD."""
        run(clone, "-c", "gpg.format=ssh", "-c", f"user.signingKey={key}", "tag", "--sign", "--message", tag, tag)

    def test_one_that_is_signed_by_an_allowed_key_is_accepted(self, clone, key):
        """It is the only thing that starts a release."""
        self.sign(clone, key, "v0.2.0")
        assert Repository(clone).tags_here() == ["v0.2.0"]
        assert Repository(clone).why_unsigned("v0.2.0") == ""

    def test_all_others_are_refused(self, clone, key):
        """A bare tag, one without a signature, and one by a key that is not in the list."""
        self.sign(clone, key, "v0.2.0")
        run(clone, "tag", "v0.2.1")
        run(clone, "tag", "--annotate", "--message", "x", "v0.2.2")
        (clone / SIGNERS).write_text("# Nobody.\n")
        repository = Repository(clone)
        assert "not an annotated tag" in repository.why_unsigned("v0.2.1")
        assert repository.why_unsigned("v0.2.2") != ""
        assert repository.why_unsigned("v0.2.0") != ""


class TestDependencies:
    def test_only_what_pgonce_needs_is_counted(self):
        """Not what the tests have installed as well, and an extra's packages only with it."""
        plain = needed()
        assert {"pgonce", "psycopg", "psycopg-binary", "pyarrow", "pgpq", "typer"} <= set(plain)
        assert not {"pytest", "uvicorn", "pyspark"} & set(plain)
        assert set(needed(["serve", "spark"])) - set(plain) >= {"uvicorn", "pyspark", "py4j"}

    def test_the_page_for_platform_teams_has_the_limits(self):
        """What it promises is what the release check allows."""
        page = (ROOT / "docs/start/for-a-platform-team.md").read_text()
        assert f"At most {MOST_PACKAGES} packages and {MOST_MEGABYTES} MB" in page

    def test_conda_installs_the_same(self):
        """The recipe has the bounds of each dependency, and those of Spark, which it does not bring."""
        wanted = {"python": ">=3.10"}
        for each in map(Requirement, requires("pgonce") or ()):
            if each.marker is None or each.marker.evaluate({"extra": "spark"}):
                names = [each.name, "psycopg-c"] if each.name == "psycopg" else [each.name]
                wanted |= dict.fromkeys(names, str(each.specifier))
        recipe = yaml.safe_load((ROOT / RECIPE).read_text())["requirements"]
        lines = [line.replace("_", "-").split() for line in [*recipe["run"], *recipe["run_constraints"]]]
        assert {name: ",".join(sorted(bounds.split(","))) for name, bounds in lines} == wanted

    @pytest.mark.parametrize(
        ("field", "value", "licence", "allowed"),
        [
            ("License-Expression", "Apache-2.0 OR GPL-3.0-only", "Apache-2.0 OR GPL-3.0-only", True),
            ("License-Expression", "MIT AND GPL-3.0-only", "MIT AND GPL-3.0-only", False),
            ("License-Expression", "Apache-2.0 AND BSD-2-Clause", "Apache-2.0 AND BSD-2-Clause", True),
            ("Classifier", "License :: OSI Approved :: MIT License", "MIT", True),
            ("License", "Apache 2.0", "Apache-2.0", True),
            ("License", "Other/Proprietary License", "Other/Proprietary License", False),
            ("Keywords", "none", "unknown", False),
        ],
    )
    def test_licences_are_read_and_judged(self, field, value, licence, allowed):
        """An expression counts most; old metadata has words for it; what says nothing is refused."""
        metadata = Message()
        metadata[field] = value
        assert licence_of(metadata) == licence
        assert is_allowed(licence) is allowed
        assert (refused({"x": licence}) == []) is allowed
