"""
A real Prometheus with the configuration of ``examples/monitoring``, but for its targets and how often it scrapes.

Runs in: pytest. Invariant: it ends with the block, and its data with the test's folder.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from free_ports import free_port
from support.fixtures.skips import unavailable
from support.patience import PATIENCE_SECONDS
from typing_extensions import Self

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
_START_SECONDS = 60.0


def program(name: str) -> str:
    """Where a program of Prometheus is."""
    found = shutil.which(name)
    if found is None:
        unavailable(f"{name} is missing: apt-get install prometheus")
    return found


@dataclass(frozen=True)
class Sample:
    """One series of an answer, and its value now."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """Scrapes ``targets`` and evaluates the alerts once a second, from its block's begin to its end."""

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        text = (MONITORING / "prometheus.yml").read_text()
        for old, new, times in (
            ("15s", "1s", 2),
            ("alerts.yml", json.dumps(str(MONITORING / "alerts.yml")), 1),
            ("[127.0.0.1:9847]", json.dumps(list(targets)), 1),
        ):
            assert text.count(old) == times
            text = text.replace(old, new)
        folder.mkdir()
        (folder / "prometheus.yml").write_text(text)
        self._folder = folder
        self._port = free_port()

    def __enter__(self) -> Self:
        command = [
            program("prometheus"),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        ]
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(self._is_ready, _START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def ask(self, expression: str) -> list[Sample]:
        """What an expression gives now; series whose value is no number are left out."""
        answer = self._get("query", query=expression)
        assert answer["resultType"] == "vector"
        found = [Sample(one["metric"], float(one["value"][1])) for one in answer["result"]]
        return [one for one in found if not math.isnan(one.value)]

    def values_of(self, label: str, selector: str) -> list[str]:
        """The values that a label has in the series of a selector."""
        return list(self._get(f"label/{label}/values", **{"match[]": selector}))

    def rules(self) -> dict[str, Any]:
        """The alerts' rules by their names, as Prometheus has evaluated them last."""
        return {rule["name"]: rule for group in self._get("rules")["groups"] for rule in group["rules"]}


def wait_for(holds: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until this is true, and give it."""
    until = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < until, "it did not come in time"
        time.sleep(0.1)
    return found
