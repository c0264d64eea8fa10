"""
Run a real Kafka without a container.

Runs in: any process; the broker is one JVM of its own (KRaft, broker and controller in one). Invariant: the
broker lives as long as its owner and no longer, and leaves no process and no directory.
"""

from __future__ import annotations

import base64
import signal
import time
import uuid
from pathlib import Path

from free_ports import free_ports
from jvm import Jvm
from maven import MissingTool, jars_of_pom
from typing_extensions import Self

__all__ = ["KafkaBroker", "MissingTool", "broker_jars", "postgres_jdbc_jar", "spark_connector_jars"]

_POMS = Path(__file__).resolve().parent
_READY_SECONDS = 60.0
_OPTIONS = ("-Xmx512m", "-Xshare:auto", "-XX:TieredStopAtLevel=1")


def broker_jars() -> list[Path]:
    """Jars of the broker itself. :raises MissingTool:"""
    return jars_of_pom(_POMS / "broker" / "pom.xml")


def spark_connector_jars() -> list[Path]:
    """Jars for ``spark.jars`` with which Spark reads and writes Kafka. :raises MissingTool:"""
    return [jar for jar in jars_of_pom(_POMS / "connector" / "pom.xml") if not _is_jdbc(jar)]


def postgres_jdbc_jar() -> Path:
    """Jar of the Postgres JDBC driver, for benchmarks against Spark's own writer. :raises MissingTool:"""
    return next(jar for jar in jars_of_pom(_POMS / "connector" / "pom.xml") if _is_jdbc(jar))


def _is_jdbc(jar: Path) -> bool:
    return jar.name.startswith("postgresql-")


class KafkaBroker:
    """
    One broker; a context manager, or :meth:`start` and :meth:`stop`.

    :raises MissingTool: if Maven or Java is missing.
    """

    def __init__(self) -> None:
        self._jvm = Jvm("kafka", broker_jars(), _OPTIONS)
        self._port, self._controller_port = free_ports(2)
        self._format_options: tuple[str, ...] = ()

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients; the same after :meth:`kill` and another :meth:`start`."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Format the log directory if there is none, start, and return once the broker answers."""
        properties = self._jvm.home / "server.properties"
        if not properties.exists():
            properties.write_text(self._properties())
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            # A leading dash would read as an option.
            cluster_id = cluster_id.replace("-", "A")
            format_ = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties))
            self._jvm.run(*format_, *self._format_options)
        self._jvm.start("kafka.Kafka", str(properties))
        self._wait_until_it_answers()
        return self

    def stop(self) -> None:
        """Stop and delete every topic with the broker's directory."""
        self._jvm.remove()

    def kill(self) -> None:
        """SIGKILL the broker; its log stays, for another :meth:`start` at the same address."""
        self._jvm.end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        return self._jvm.pid

    def _properties(self) -> str:
        return "".join(f"{name}={value}\n" for name, value in self._values().items())

    def _values(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._jvm.home / "logs"),
            # One broker, so one replica of everything, and few partitions of what is only bookkeeping.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # Topics are created explicitly, never by a misspelt name in a consumer.
            "auto.create.topics.enable": "false",
            "controlled.shutdown.enable": "false",
            # With the default of 9 s, a broker that was killed waits that long for its own old session to end.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "200",
        }

    def _wait_until_it_answers(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until and self._jvm.runs():
            # A port that takes connections is not enough: wait until the broker lists itself.
            admin = AdminClient(
                {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 200}
            )
            try:
                if admin.list_topics(timeout=2).brokers:
                    return
            except KafkaException:
                time.sleep(0.2)
        said = self._jvm.log_end()
        self.stop()
        raise RuntimeError(f"Kafka did not answer within {_READY_SECONDS:.0f} s; the end of its log: {said}")
