"""What a task says whose Python cannot unpickle the writer, and what a worker need not collect again and again."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql import types as t

from pgonce.sink.data_source.spark_interface import StreamWriter
from pgonce.sink.data_source.task_writer import MicroBatch, TaskWriter
from pgonce.sink.options.sink_options import parse_options

OPTIONS = {"url": "host=db password=hunter2", "table": "events", "checkpointLocation": "/ckpt"}
STRUCT = t.StructType([t.StructField("id", t.LongType())])
PARSED = parse_options(OPTIONS, overwrite=False)
WRITER = StreamWriter(PARSED, TaskWriter(PARSED, STRUCT, MicroBatch(None)))

UNPICKLE = "import pickle, sys; print(type(pickle.loads(sys.stdin.buffer.read())))"
WITHOUT_PGONCE = "import sys; sys.modules.update(pgonce=None)"
WITHOUT_PGPQ = "import sys; sys.modules.update(pgpq=None)"
OF_ANOTHER_VERSION = "import importlib.metadata; importlib.metadata.version = lambda _: '0.0.9'"
# A worker that goes on while another version is installed under it.
UPGRADED = (
    "import importlib.metadata",
    "now = importlib.metadata.version",
    OF_ANOTHER_VERSION,
    "import pgonce.sink.data_source.spark_interface",
    "importlib.metadata.version = now",
)


def task(*before):
    """What a new Python says that unpickles the writer after these statements."""
    code = "\n".join([*before, UNPICKLE])
    return subprocess.run([sys.executable, "-c", code], input=dumps(WRITER), capture_output=True, check=False)


def test_a_writer_arrives_where_pgonce_is():
    """The check is in nobody's way."""
    assert task().stdout.strip() == b"<class 'pgonce.sink.data_source.spark_interface.StreamWriter'>"


@pytest.mark.parametrize(
    ("lack", "code", "says"),
    [
        (WITHOUT_PGONCE, "NOT_ON_EXECUTORS", "pgonce"),
        (WITHOUT_PGPQ, "NOT_ON_EXECUTORS", "pgpq"),
        (OF_ANOTHER_VERSION, "OTHER_VERSION", "0.0.9"),
    ],
)
def test_what_an_executor_lacks_is_said_with_the_place_and_the_way_out(lack, code, says):
    """Not "No module named 'pgonce'" alone: which Python, on which host, and what to install there."""
    last = task(lack).stderr.decode().splitlines()[-1]
    assert last.startswith(f"ImportError: [{code}] ")
    assert sys.executable in last
    assert says in last
    assert "Help: Install " in last
    assert "hunter2" not in last


def test_a_worker_that_has_loaded_another_version_is_refused_whatever_is_installed_since():
    """An upgrade in place changes what is installed, and not the code of the processes that live on."""
    last = task(*UPGRADED).stderr.decode().splitlines()[-1]
    assert last.startswith("ImportError: [OTHER_VERSION] ")
    assert "0.0.9" in last
    assert "start the application again" in last


def test_a_writer_of_a_class_that_no_module_has_arrives_too():
    """As one that somebody derived from ours in a script."""

    class Derived(StreamWriter):
        pass

    derived = Derived.__new__(Derived)
    derived.__dict__.update(vars(WRITER))
    assert vars(pickle.loads(dumps(derived))) == vars(WRITER)


# In a process of its own, as what is set aside stays so.
SETTLES = """
import gc
from pgonce.sink.data_source.workers import settle

counts = [gc.get_freeze_count()]
for work in ("planning", "planning", "writing"):
    counts.append((settle(work), gc.get_freeze_count())[1])
    later = [[] for _ in range(1000)]
print(*counts)
"""


def test_what_is_loaded_is_set_aside_once_for_each_kind_of_work():
    """What a second batch of the same kind makes is collected as usual, so nothing grows with the stream."""
    done = subprocess.run([sys.executable, "-c", SETTLES], capture_output=True, text=True, check=True)
    before, planned, planned_again, written = map(int, done.stdout.split())
    assert before < planned == planned_again < written
