"""
A run of a declarative pipeline, as ``spark-pipelines`` makes it, in a process that a test can kill.

Runs in: a process of its own, started by a test with the arguments of ``spark-pipelines``. Invariant: it becomes that
program, so that its process id, and that of its session, is the one that the test knows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

PROGRAM = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"

if __name__ == "__main__":
    # The launcher of this program does not read SPARK_SUBMIT_OPTS.
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    environment = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), "JAVA_TOOL_OPTIONS": options}
    os.execve(PROGRAM, [str(PROGRAM), *sys.argv[1:]], environment)
