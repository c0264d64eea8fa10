"""
Kill a streaming query again and again, and count its rows: what `make demo` runs.

Starts a Postgres (and with --kafka or --real-time a broker), lets orders come in, starts the job (job.py, or
real_time_job.py), SIGKILLs it in the middle of its work, starts it again, and at the end compares every order that was
sent with what is in the table. With --real-time it also says after how many milliseconds orders were visible.

Exit status: 0 exactly once; 1 a row was lost or doubled, or too few kills hit; 2 something is missing on this machine
or failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from course import DemoError, MicroBatches
from driver import Workplace
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, postgres_jdbc_jar, spark_connector_jars
from maven import java
from orders import Files, Source, Topic
from outcome import LEAST_KILLS
from real_time_course import RealTime
from screen import Screen

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What is timed is visible and on the disk; and Postgres knows when each transaction was committed.
_TIMED = {"fsync": "on", "full_page_writes": "on", "track_commit_timestamp": "on"}
# In real time each partition has a core of its own, and the job has two.
_REAL_TIME_PARTITIONS = 2


def run(screen: Screen, kills: int, *, kafka: bool, real_time: bool) -> bool:
    """Set up, kill so many times, finish, clean up; tell whether every order arrived once."""
    with ExitStack() as stack:
        try:
            source, workplace = _set_up(screen, stack, kafka=kafka, real_time=real_time)
            screen.say("Starting an embedded Postgres.")
            postgres = stack.enter_context(EmbeddedPostgres(settings=_TIMED if real_time else None))
            screen.say(f"Orders keep coming in, as {source.name}.")
            course = RealTime if real_time else MicroBatches
            # Over TCP, because tasks in real time write through JDBC, which has no Unix sockets.
            demo = course(screen, workplace, source, postgres.tcp_uri(), stack)
            for _ in range(kills):
                demo.kill_in_the_middle()
            return demo.finish()
        finally:
            # A second Ctrl-C must not interrupt the cleaning up.
            for number in _ENDINGS:
                signal.signal(number, signal.SIG_IGN)


def _set_up(screen: Screen, stack: ExitStack, *, kafka: bool, real_time: bool) -> tuple[Source, Workplace]:
    java()
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgonce-demo-")))
    if not (kafka or real_time):
        return Files(directory / "orders"), Workplace(directory)
    screen.say("Starting a Kafka broker (the first time, Maven fetches its jars).")
    servers = stack.enter_context(KafkaBroker()).bootstrap_servers
    if real_time:
        jars = [*spark_connector_jars(), postgres_jdbc_jar()]
        return Topic(servers, _REAL_TIME_PARTITIONS), Workplace(directory, jars)
    return Topic(servers), Workplace(directory, spark_connector_jars())


def _interrupted(number: int, _: object) -> None:
    # Whatever asks for the end: unwind the stack, which cleans up.
    raise KeyboardInterrupt(number)


def main() -> int:
    """Parse the command line and run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="read from a real Kafka broker instead of files")
    parser.add_argument("--real-time", action="store_true", help="from a real Kafka broker, and time the orders")
    parser.add_argument("--kills", type=int, default=LEAST_KILLS, help="how often to kill the driver; three or more")
    given = parser.parse_args()
    if given.kills < LEAST_KILLS:
        parser.error(f"--kills must be at least {LEAST_KILLS}.")
    for number in _ENDINGS:
        signal.signal(number, _interrupted)
    try:
        with Screen() as screen:
            return 0 if run(screen, given.kills, kafka=given.kafka, real_time=given.real_time) else 1
    except (DemoError, MissingTool) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; everything that was started is stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
