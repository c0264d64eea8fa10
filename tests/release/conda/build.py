"""
Build the conda package of the recipe in this folder from dist/, install it, and run the recipe's tests.

Runs in: the environment of the release's tools, which has rattler-build. Without a channel it makes one of stand-ins:
empty packages with the names that the recipe asks for, in the versions that pip installed, and a `python` that runs a
real one that has them. So the build, the package and its tests are real; only what else conda would install is not.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from rattler_build import Package, RattlerBuildError, Stage0Recipe

_RECIPE = Path(__file__).with_name("recipe.yaml")
# Names that conda has in place of pip's.
_NAMES = {"psycopg-binary": "psycopg-c", "typing-extensions": "typing_extensions"}
# Java is the one on the path.
_JAVA = "17"
_PYTHON = """\
#!/bin/sh
prefix=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
export PIP_PREFIX="$prefix" PYTHONPATH="$prefix/lib/python{version}/site-packages"
exec {python} "$@"
"""


def main() -> int:
    """Build, test, and print where the package is; 1 if that failed."""
    parser = argparse.ArgumentParser(description="Build the conda package, and run the recipe's tests.")
    parser.add_argument("folder", type=Path, help="where the package goes")
    parser.add_argument("--channel", help="a channel that has all that the recipe asks for, such as conda-forge")
    parser.add_argument("--python", type=Path, help="without a channel: a Python that has all of it, and pip")
    arguments = parser.parse_args()
    channel = arguments.channel or _stand_ins(arguments.folder.absolute() / "channel", arguments.python.absolute())
    try:
        recipe = Stage0Recipe.from_file(_RECIPE)
        (built,) = recipe.run_build(output_dir=arguments.folder.absolute() / "built", channels=[channel])
        (path,) = built.packages
        results = Package.from_file(path).run_tests(channel=[channel])
    except RattlerBuildError as error:
        print(*getattr(error, "log", ()), error, sep="\n", file=sys.stderr)
        return 1
    for result in results:
        print(*(() if result.success else result.output), f"test {result.test_index}: {result.success}", sep="\n")
    print(path)
    return 0 if results and all(result.success for result in results) else 1


def _stand_ins(channel: Path, python: Path) -> str:
    """Write the channel of stand-ins, and return its address."""
    pip = [python, "-m", "pip", "list", "--format", "json"]
    installed = json.loads(subprocess.run(pip, check=True, capture_output=True).stdout)
    versions = {each["name"].lower(): each["version"] for each in installed} | {"openjdk": _JAVA}
    packages = [_archive(_NAMES.get(name, name), version, {}) for name, version in versions.items()]
    asked = [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    script = _PYTHON.format(version=version, python=python)
    packages.append(_archive("python", f"{version}.0", dict.fromkeys(["bin/python", f"bin/python{version}"], script)))
    subdir = channel / "noarch"
    subdir.mkdir(parents=True, exist_ok=True)
    index = {}
    for about, content in packages:
        name = f"{about['name']}-{about['version']}-{about['build']}.tar.bz2"
        (subdir / name).write_bytes(content)
        index[name] = {**about, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    whole = {"info": {"subdir": "noarch"}, "packages": index, "packages.conda": {}, "repodata_version": 1}
    (subdir / "repodata.json").write_text(json.dumps(whole))
    return channel.as_uri()


def _archive(name: str, version: str, files: dict[str, str]) -> tuple[dict[str, object], bytes]:
    """Give a package of programs what conda's older format has: its line in the index, and an archive."""
    about = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}
    paths = [{"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(text.encode()).hexdigest(),
              "size_in_bytes": len(text)} for path, text in files.items()]  # fmt: skip
    information = {"index": json.dumps(about), "paths": json.dumps({"paths": paths, "paths_version": 1})}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:bz2") as tar:
        for path, text in {**{f"info/{part}.json": text for part, text in information.items()}, **files}.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    return about, archive.getvalue()


if __name__ == "__main__":
    sys.exit(main())
