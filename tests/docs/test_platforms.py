"""The unit for systemd that docs/platforms/index.md shows is one that systemd takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from configparser import ConfigParser

from support.page_reader import blocks_of


def test_the_unit_restarts_the_query(tmp_path):
    """It has its three sections, always starts again, and systemd, where it is installed, finds nothing wrong."""
    (unit,) = (block.text for block in blocks_of("platforms/index.md") if block.language == "ini")
    # Environment= comes twice, as systemd allows.
    read = ConfigParser(strict=False, interpolation=None)
    read.read_string(unit)
    assert read.sections() == ["Unit", "Service", "Install"]
    assert read["Service"]["Restart"] == "always"
    verify = shutil.which("systemd-analyze")
    if verify:
        # The program must be there.
        there = unit.replace("/opt/orders/bin/spark-submit", sys.executable)
        assert there != unit
        file = tmp_path / "orders.service"
        file.write_text(there.replace("User=orders", "User=root"))
        done = subprocess.run([verify, "verify", file], capture_output=True, text=True, check=False)
        assert (done.returncode, [line for line in done.stderr.splitlines() if "orders.service" in line]) == (0, [])
