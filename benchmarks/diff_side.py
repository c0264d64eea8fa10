"""
One of the two drivers of ``diff.py``: runs what it is asked for, with the version of pgonce that is on its path.

Runs as a process of its own. Invariant: its standard output has one line of JSON for each line of its input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from diff import contests
from kafka_broker import postgres_jdbc_jar
from loads import FULL, SMALL
from measure import Bench
from run import spark_session


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, at the end of the input; the arguments are host, port and database."""
    host, port, database = arguments
    # Spark and its workers print to where this process prints.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with spark_session(postgres_jdbc_jar()) as spark:
        url = f"postgresql://postgres@{host}:{port}/{database}"
        bench = Bench(spark, url, f"jdbc:postgresql://{host}:{port}/{database}?user=postgres")
        for line in sys.stdin:
            order = json.loads(line)
            asked = contests(SMALL if order["small"] else FULL)
            load, contenders = next(contest for contest in asked if contest[0].name == order["load"])
            contender = next(one for one in contenders if one.name == order["contender"])
            answers.write(json.dumps(bench.run(contender, load)) + "\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
