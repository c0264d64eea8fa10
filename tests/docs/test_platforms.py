"""What docs/start/for-a-platform-team.md shows for systemd and for Airflow is taken by them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import psycopg
import pytest
from maven import build_once
from support.page_reader import blocks_of

AIRFLOW = ("apache-airflow==3.3.*", "apache-airflow-providers-apache-spark==6.*")


def test_the_unit_restarts_the_query(tmp_path):
    """It has its three sections, always starts again, and systemd, where it is installed, finds nothing wrong."""
    (unit,) = (block.text for block in blocks_of("start/for-a-platform-team.md") if block.language == "ini")
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


@pytest.fixture(scope="module")
def airflow() -> str:
    """Its command, in an environment of its own, which is made once; a task needs no pgonce there."""

    def install(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *AIRFLOW], check=True)

    # It is made in another folder, which its scripts name: so Python is asked for the module.
    place = build_once("airflow", " ".join([sys.version, *AIRFLOW]).encode(), install, ".lock-airflow")
    return f"{place / 'bin' / 'python'} -m airflow"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.no_ledger
def test_airflow_loads_each_month_once(start_reader, airflow, url, tmp_path):
    """A task that runs again, as Airflow's do after a failure, is skipped; its program is the backfill's."""
    (dag,) = (block.text for block in blocks_of("start/for-a-platform-team.md") if block.language == "python")
    reader = start_reader(PGONCE_URL=url, AIRFLOW_HOME=str(tmp_path / "home"), AIRFLOW__CORE__LOAD_EXAMPLES="False")
    for block in blocks_of("batch-jobs.md#A backfill next to a live stream"):
        if "# backfill.py" in block.text:
            reader.do(block)
    dags = tmp_path / "home" / "dags"
    dags.mkdir(parents=True)
    here = dag.replace("/opt/orders", str(reader.directory)).replace("postgresql://streamer@db.example/shop", url)
    assert here.count(str(reader.directory)) == here.count(url) == 1
    (dags / "orders.py").write_text(here)
    reader.type(
        "mkdir -p archive/2026-09 archive/2026-10\n"
        """echo '{"order_id": 1, "placed_at": "2026-09-02T00:00:00Z"}' > archive/2026-09/1.json\n"""
        """echo '{"order_id": 2, "placed_at": "2026-10-02T00:00:00Z"}' > archive/2026-10/1.json\n"""
        """psql "$PGONCE_URL" -c 'CREATE TABLE orders (order_id bigint, placed_at timestamptz)'\n"""
        f"{airflow} db migrate\n"
        f"{airflow} connections add spark_default --conn-type spark --conn-host 'local[2]'\n"
        f"for month in 2026-09 2026-10 2026-10; do {airflow} dags test orders $month-01; done"
    )
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT order_id FROM orders ORDER BY 1").fetchall() == [(1,), (2,)]
        assert connection.execute("SELECT batch_key FROM pgonce.batch_job_skips").fetchall() == [("2026-10",)]
