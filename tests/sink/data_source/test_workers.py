"""What a task says whose Python cannot unpickle the writer, and what a worker need not collect again and again."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql import types as t

from pgonce.every_room import EVERY_ROOM
from pgonce.sink.data_source.spark_interface import StreamWriter
from pgonce.sink.data_source.task_writer import MicroBatch, TaskWriter
from pgonce.sink.options.sink_options import parse_options
from pgonce.sink.read_rows import AllRows

OPTIONS = {"url": "host=db password=hunter2", "table": "events", "checkpointLocation": "/ckpt"}
STRUCT = t.StructType([t.StructField("id", t.LongType())])
PARSED = parse_options(OPTIONS, overwrite=False)
WRITER = StreamWriter(PARSED, TaskWriter(PARSED, AllRows(STRUCT), MicroBatch(None)), EVERY_ROOM)

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
        (OF_ANOTHER_VERSION, "NOT_ON_EXECUTORS", "0.0.9"),
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
    assert last.startswith("ImportError: [NOT_ON_EXECUTORS] ")
    assert "0.0.9" in last
    assert "start the application again" in last


UPGRADED_SINCE = "import pgonce.sink.data_source.workers as workers; workers.version = lambda _: '0.0.9'"
# What a task imports only when it stages, long after its other code.
LATER = """
import sys
import pgonce.sink.data_source.task_writer
from pgonce.sink.data_source.workers import imported_late
{meanwhile}
for again in range(2):
    try:
        with imported_late("pgonce.sink.data_source.stager"):
            import pgonce.sink.data_source.stager
    except Exception as error:
        print(error)
    else:
        print("imported")
"""


@pytest.mark.parametrize(
    ("meanwhile", "says"),
    [
        ("", "imported"),
        (UPGRADED_SINCE, "[NOT_ON_EXECUTORS] A task's process has pgonce"),
        ("sys.modules.update(psycopg=None)", "[NOT_ON_EXECUTORS] "),
    ],
)
def test_code_that_is_imported_later_is_of_the_same_version(meanwhile, says):
    """However often it is asked for: two versions of the code never run in one task."""
    code = LATER.format(meanwhile=meanwhile)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith(says)
    assert second.startswith(says)


def test_a_later_upgrade_does_not_matter_to_what_is_imported_already():
    """A process goes on with the code that it has."""
    imported = f"import pgonce.sink.data_source.stager\n{UPGRADED_SINCE}"
    code = LATER.format(meanwhile=imported)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["imported", "imported"]


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

counts, loaded = [gc.get_freeze_count()], []
for work in ("planning", "planning", "planning", "writing", "writing"):
    settle(work)
    counts.append(gc.get_freeze_count())
    loaded.append([[] for _ in range(1000)])
print(*counts)
"""


def test_what_is_loaded_is_set_aside_once_for_each_kind_of_work():
    """
    When it begins a second time: the first batch does not wait for that, and what later ones make is collected as
    usual, so nothing grows with the stream.
    """
    done = subprocess.run([sys.executable, "-c", SETTLES], capture_output=True, text=True, check=True)
    before, planned, again, a_third_time, written, written_again = map(int, done.stdout.split())
    assert before == planned < again == a_third_time == written < written_again
