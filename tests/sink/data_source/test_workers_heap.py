"""What a worker has loaded is set aside from the collections of Spark's daemon, once for each kind of work."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own, as what is set aside stays so.
PROGRAM = """
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
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, planned, planned_again, written = map(int, done.stdout.split())
    assert before < planned == planned_again < written
