"""
Do what a page says: save its programs, and type its commands, in its order, in one shell.

Runs in: pytest. Invariant: a block runs as it stands on the page. Only what would fetch something has a stand-in:
``pip install`` requires that all it names is installed, and ``spark-submit --packages`` takes jars of the same names
and versions, which Maven has fetched. Nothing that was started outlives the reader.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import postgres_binaries
from maven import ROOT
from support.fixtures.spark import spark_environment

_BIN = Path(sys.executable).parent
_PIP = """\
import sys
from importlib.metadata import requires, version

from packaging.requirements import Requirement

wanted = [Requirement(given) for given in sys.argv[2:] if not given.startswith("-")]
while wanted:
    one = wanted.pop()
    assert version(one.name) in one.specifier, f"{one} is wanted, and {version(one.name)} is installed"
    needs = [Requirement(each) for each in requires(one.name) or ()]
    wanted += [need for need in needs if need.marker and any(need.marker.evaluate({"extra": e}) for e in one.extras)]
"""
_SPARK_SUBMIT = """\
import json, os, sys

jars, arguments = json.loads(os.environ["JARS_OF_PACKAGES"]), sys.argv[1:]
if "--packages" in arguments:
    place = arguments.index("--packages") + 1
    named = arguments[place].split(",")
    arguments[place - 1 : place + 1] = ["--jars", ",".join(jar for name in named for jar in jars[name])]
os.execv(os.environ["REAL_SPARK_SUBMIT"], ["spark-submit", *arguments])
"""
# No name lookups, no page, and no more slots than the tests' other drivers have.
_SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page of docs/, in its order; ``page.md#Heading`` has those of one section."""
    name, _, heading = page.partition("#")
    text = (ROOT / "docs" / name).read_text()
    text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else text
    return [Block(*found) for found in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)]


class PageReader:
    """
    A reader who follows a page in an empty folder.

    :param directory: the folder.
    :param jars: for what ``--packages`` may name, the jars.
    :param env: what the reader's shell knows, such as ``PGONCE_URL``.
    """

    def __init__(self, directory: Path, jars: Mapping[str, list[Path]], env: Mapping[str, str]) -> None:
        self.directory = directory / "folder"
        self.directory.mkdir()
        stand_ins = directory / "bin"
        stand_ins.mkdir()
        for name, program in {"pip": _PIP, "spark-submit": _SPARK_SUBMIT}.items():
            (stand_ins / name).write_text(f"#!{sys.executable}\n{program}")
            (stand_ins / name).chmod(stat.S_IRWXU)
        spark = spark_environment()
        settings = " ".join(f"-D{name}={value}" for name, value in _SPARK.items())
        path = [stand_ins, _BIN, os.environ["PATH"], postgres_binaries.bin_dir()]
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env={
                **os.environ,
                **spark,
                "SPARK_SUBMIT_OPTS": f"{spark['SPARK_SUBMIT_OPTS']} {settings}",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "JARS_OF_PACKAGES": json.dumps({name: list(map(str, found)) for name, found in jars.items()}),
                "REAL_SPARK_SUBMIT": str(_BIN / "spark-submit"),
                "PATH": os.pathsep.join(map(str, path)),
                # psql waits for no key.
                "PAGER": "cat",
                **env,
            },
            start_new_session=True,
        )

    def follow(self, page: str) -> str:
        """Do all that a page says, and give what its commands printed."""
        return "".join(self.do(block) for block in blocks_of(page))

    def do(self, block: Block) -> str:
        """Save a program whose first line names it, or type commands; what these printed."""
        if block.language == "sh":
            return self.type(block.text)
        named = re.match(r"(?:#|--|//) (\S+\.(?:py|sql|json|proto))\n", block.text)
        if named:
            (self.directory / named[1]).write_text(block.text)
        return ""

    def type(self, commands: str) -> str:
        """Type commands, each of which must succeed, and give what they printed."""
        assert self._shell.stdin
        assert self._shell.stdout
        end = f"end-{secrets.token_hex(8)}"
        self._shell.stdin.write(f"trap 'echo {end} failed: $BASH_COMMAND' ERR\n{commands}\ntrap - ERR\necho {end}\n")
        self._shell.stdin.flush()
        printed = ""
        for line in self._shell.stdout:
            if line.startswith(end):
                assert line.strip() == end, f"{line}{printed}{self._logs()}"
                return printed
            printed += line
        raise AssertionError(f"The shell ended: {printed}")

    def close(self) -> None:
        """End the shell, and all that was started in it."""
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def _logs(self) -> str:
        return "".join(f"\n{log.name}:\n{log.read_text()[-6000:]}" for log in self.directory.glob("*.log"))
