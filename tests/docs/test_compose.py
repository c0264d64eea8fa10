"""What examples/compose starts is there: files, images by their versions, commands, the producer."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml
from confluent_kafka import Consumer
from maven import ROOT
from typer.main import get_command

from pgonce.cli.main import app

FOLDER = ROOT / "examples" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_every_image_that_is_not_built_here_has_a_version():
    """None is the newest of some day, but for the one that is built here."""
    images = {service["image"] for service in SERVICES.values() if "build" not in service}
    (base,) = re.findall(r"^FROM (\S+)", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert [image for image in {*images, base} if not re.search(r":v?\d+\.\d+", image)] == []


def test_what_is_mounted_and_copied_is_there():
    """A path that is missing would become an empty folder."""
    mounted = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())]
    files = [FOLDER / path for path in mounted if path.startswith(".")]
    for copied in re.findall(r"^COPY (.+) \S+$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE):
        files += [ROOT / path for path in copied.split()]
    assert len(files) > 5
    assert [path for path in files if not path.exists()] == []
    assert {path for path in mounted if not path.startswith(".")} == {*COMPOSE["volumes"]}
    settings = [yaml.safe_load(path.read_text()) for path in (FOLDER / "grafana").iterdir()]
    assert [setting["apiVersion"] for setting in settings] == [1, 1]


def test_services_know_each_other():
    """What a service waits for, or shares a network with, is one."""
    waited = [name for service in SERVICES.values() for name in service.get("depends_on", ())]
    assert {*waited, SERVICES["prometheus"]["network_mode"].removeprefix("service:")} <= {*SERVICES}


def test_the_options_of_commands_exist():
    """`pgonce serve` has these options."""
    assert "serve" in {command.name or command.callback.__name__ for command in app.registered_commands}
    serve = get_command(app).commands["serve"]
    options = {option for parameter in serve.params for option in parameter.opts}
    assert [word for word in SERVICES["serve"]["command"] if word.startswith("--") and word not in options] == []


@pytest.mark.kafka
def test_the_producer_goes_on_where_the_topic_ends(kafka, topic):
    """Orders have numbers of their own, though the producer was started twice."""
    name = topic(partitions=2)
    for _ in range(2):
        subprocess.run([sys.executable, FOLDER / "place_orders.py", kafka.bootstrap_servers, name, "3"], check=True)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    numbers: list[int] = []
    while len(numbers) < 6:
        numbers += [json.loads(record.value())["order_id"] for record in consumer.consume(10, timeout=30)]
    consumer.close()
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
