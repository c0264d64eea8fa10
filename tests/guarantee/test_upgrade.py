"""
A stream that was begun with an earlier pgonce goes on with this one.

Covers the checkpoint, the ledger and the staging tables, as a commit wrote them that has the first release's ledger.
That commit is built from the repository's history.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import psycopg
import pytest
from support.distributions import build
from support.earlier_code import earlier_sources
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import KILLED_IN_ITS_FIRST_BATCH, spark_settings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EARLIER = "fd25a72744316c49eb295fb01b71e0acdcf7fb5c"
FILES, ROWS_A_FILE = 12, 50
TABLES = ("inline", "staged", "writer", "function")

# Of pgonce only what users call, so that both versions run it.
JOB = """
import json
import sys

from support.spark_session import started_session

import pgonce
from pgonce import PostgresBatchWriter, transactional_batch

url, folder, trigger, spark_settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
spark = started_session("upgrade", spark_settings)
print("pgonce is", pgonce.__file__)


@transactional_batch(url, name="function")
def write(batch, tx):
    tx.append(batch, "function")


ways = {
    "inline": lambda stream: stream.format("pgonce").options(url=url, table="inline"),
    "staged": lambda stream: stream.format("pgonce").options(url=url, table="staged", inlineBytes="1", receiver="off"),
    "writer": lambda stream: stream.foreachBatch(PostgresBatchWriter(url, table="writer")),
    "function": lambda stream: stream.foreachBatch(write),
}
for name, way in ways.items():
    frame = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    stream = way(frame.writeStream.queryName(name)).option("checkpointLocation", f"{folder}/checkpoints/{name}")
    stream.trigger(**trigger).start()
for query in spark.streams.active:
    query.awaitTermination()
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the earlier pgonce in it, as its wheel installs it."""
    directory = tmp_path_factory.mktemp("earlier")
    sources = earlier_sources(EARLIER, directory / "sources")
    with zipfile.ZipFile(build("wheel", sources, directory / "wheel")) as wheel:
        wheel.extractall(directory / "installed")
    return directory / "installed"


def test_a_stream_of_an_earlier_version_goes_on(tmp_path, start_driver, earlier, tcp_url):
    """Killed with the earlier version in the middle of its batches, and finished with this one: no row twice."""
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        ids = range(file * ROWS_A_FILE, (file + 1) * ROWS_A_FILE)
        (tmp_path / "in" / f"{file:02}.json").write_text("".join(f'{{"id": {i}}}\n' for i in ids))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    settings = json.dumps(spark_settings(tmp_path, kafka=False) | KILLED_IN_ITS_FIRST_BATCH)
    with psycopg.connect(tcp_url, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(f"CREATE TABLE {table} (id bigint)")

        def counts() -> list[int]:
            return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES]

        trigger = json.dumps({"processingTime": "0 seconds"})
        before = start_driver(job, tcp_url, tmp_path, trigger, settings, env=with_tests_on_path(str(earlier)))
        before.wait_for(lambda: min(counts()) >= 3 * ROWS_A_FILE, "each query had published three batches")
        before.sigkill()
        assert f"pgonce is {earlier}" in before.output()
        assert min(counts()) < FILES * ROWS_A_FILE, "all was done before the driver was killed"

        after = start_driver(
            job, tcp_url, tmp_path, json.dumps({"availableNow": True}), settings, env=with_tests_on_path()
        )
        assert after.wait() == 0, after.output()
        assert f"pgonce is {earlier}" not in after.output()
        for table in TABLES:
            ids = [id_ for (id_,) in connection.execute(f"SELECT id FROM {table} ORDER BY id")]
            assert ids == list(range(FILES * ROWS_A_FILE)), table
        assert connection.execute("SELECT count(*) FROM pgonce.writers").fetchone() == (len(TABLES),)
