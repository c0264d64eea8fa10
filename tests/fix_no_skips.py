"""
May a test be left out? On a build machine never: with CI=true, one skip fails the session, and its reason is
named.

Runs in: pytest. Invariant: an expected failure (xfail) is no skip.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def everything_required() -> bool:
    """Tell whether this machine must have all that the tests need: Postgres, Kafka, Java, Maven."""
    return os.environ.get("CI", "").lower() in {"true", "1"} or os.environ.get("PGONCE_REQUIRE_ALL") == "1"


def unavailable(reason: str) -> NoReturn:
    """What a fixture calls for want of a tool: a failure where everything is required, else a skip."""
    if everything_required():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class _SkipsFail:
    def __init__(self) -> None:
        self._skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def _note(self, nodeid: str, longrepr: object) -> None:
        self._skipped[nodeid] = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)

    # Last, so that no other plugin's verdict on the session replaces this one.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._skipped and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._skipped:
            terminalreporter.section("skipped, and CI allows no skips", red=True, bold=True)
            for nodeid, reason in self._skipped.items():
                terminalreporter.line(f"{nodeid}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Count skips where none is allowed."""
    if everything_required():
        config.pluginmanager.register(_SkipsFail(), "skips-fail")
