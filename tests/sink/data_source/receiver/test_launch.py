"""When a receiver is started, and for whom it listens: for large batches only, and for others once they need it."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.committed_rows import STRUCT, ids
from support.data_source_with_rooms import receiver_for
from support.fixtures.driver import wait_until
from support.received_batch import SENT, origin, send

from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.commit_parcels import note_unreached
from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.receiver import folders, launch


def offer(options):
    """The receiver that the plan of a batch offers."""
    return receiver_for(options, STRUCT)


def with_staged(receiver, *, unreached="127.0.0.1"):
    """What the tasks of a batch tell the commit: one has staged its rows."""
    return [Parcel(origin(), 0, 1, staged=((7, 1),), unreached=unreached, offer=offered(receiver))]


def test_plans_start_nothing_and_a_call_starts_one_process(target, receiver_options, started_receivers):
    """However many small batches there are; the batch that calls is received, though it was planned before."""
    options = receiver_options(receiver="auto")
    for _ in range(200):
        receiver = offer(options)
    assert started_receivers == []
    # A small stream opens no port, and makes no certificate.
    assert [type(address) for address in receiver.doors.addresses] == [str]
    assert receiver.doors.certificate is None
    assert folders.process_of(Path(receiver.folder)) is None
    assert send(receiver, 1, 2) == 2
    assert len(started_receivers) == 1
    assert folders.process_of(Path(receiver.folder)).pid == started_receivers[0].pid
    assert receiver.finish(origin(), SENT) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert offer(options).doors == receiver.doors
    assert len(started_receivers) == 1


def test_a_batch_that_was_not_received_has_nothing_to_give_up(receiver_options, started_receivers):
    """To tell a receiver that was never started would start it."""
    receiver = offer(receiver_options(receiver="auto"))
    began = time.monotonic()
    receiver.give_up()
    assert time.monotonic() - began < 0.5
    assert started_receivers == []


def test_once_tasks_have_found_none_it_is_for_other_hosts(target, receiver_options, started_receivers, monkeypatch):
    """It then starts before the first call, because one will come; and it takes rows over TCP."""
    options = receiver_options(receiver="auto")
    near = offer(options)
    note_unreached(with_staged(near))
    receiver = offer(options)
    assert receiver.doors.is_for_other_hosts
    assert wait_until(lambda: len(started_receivers) == 1)
    from_elsewhere = [one for one in receiver.doors.addresses if not isinstance(one, str)]
    away = replace(receiver, doors=replace(receiver.doors, addresses=tuple(from_elsewhere)))
    assert send(away, 1, 2) == 2
    assert receiver.finish(origin(), SENT) is Verdict.NEW
    assert ids(target) == [1, 2]
    # Another worker of the same planner, and another application on this host, know it as well.
    monkeypatch.setattr(launch, "_offers", {})
    assert offer(options).doors.is_for_other_hosts


@pytest.mark.parametrize("unreached", [None, "127.0.0.2"], ids=["was reached", "was not reached"])
def test_one_that_takes_no_rows_is_offered_again(unreached, receiver_options, started_receivers, caplog):
    """Its disk was full, or executors do not reach it, which the log says once."""
    options = receiver_options(receiver="auto")
    note_unreached(with_staged(offer(options)))
    receiver = offer(options)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            note_unreached(with_staged(receiver, unreached=unreached))
    said = [record.getMessage() for record in caplog.records if "not reached the receiver" in record.getMessage()]
    assert ["127.0.0.2" in one for one in said] == ([True] if unreached else [])
    assert offer(options).doors == receiver.doors


def test_where_spark_listens_at_all_addresses_so_does_the_receiver(target, receiver_options, started_receivers):
    """As with spark.driver.bindAddress=0.0.0.0; tasks find it by the name of Spark's driver."""
    options = receiver_options(receiver="auto")
    note_unreached(with_staged(offer(options), unreached="0.0.0.0"))
    receiver = offer(options)
    (port,) = [address[1] for address in receiver.doors.addresses if not isinstance(address, str)]
    far = replace(receiver, doors=replace(receiver.doors, addresses=(("192.0.2.1", port),)))
    assert far.call({"spark.driver.host": "localhost"}.get).line() is not None


def test_where_the_driver_cannot_listen_it_stays_on_this_host(receiver_options, started_receivers):
    """The address of an earlier application may be another host's by now."""
    options = receiver_options(receiver="auto")
    note_unreached(with_staged(offer(options), unreached="192.0.2.1"))
    receiver = offer(options)
    assert not receiver.doors.is_for_other_hosts
    assert offer(options).doors == receiver.doors
    note_unreached(with_staged(receiver))
    assert offer(options).doors.is_for_other_hosts


def test_without_a_private_folder_it_stays_on_this_host(receiver_options, started_receivers, monkeypatch):
    """Then no commit can say where others would find it; still nothing is started before a call."""

    def refused(*_):
        raise PermissionError("not private")

    monkeypatch.setattr(launch, "note_of", refused)
    options = receiver_options(receiver="auto")
    receiver = offer(options)
    note_unreached(with_staged(receiver))
    assert offer(options).doors == receiver.doors
    assert started_receivers == []


def test_without_the_library_for_certificates_it_stays_on_this_host(receiver_options, started_receivers, monkeypatch):
    """That is no error of a user who asked for nothing."""
    options = receiver_options(receiver="auto")
    note_unreached(with_staged(offer(options)))
    monkeypatch.setitem(sys.modules, "cryptography", None)
    receiver = offer(options)
    assert [type(address) for address in receiver.doors.addresses] == [str]
    assert offer(options).doors == receiver.doors


def test_where_a_process_cannot_be_started_callers_do_not_wait(receiver_options, monkeypatch):
    """They are refused, and stage their rows; the next plan tries again."""
    monkeypatch.setattr(launch, "_offers", {})
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    options = receiver_options(receiver="auto")
    receiver = offer(options)

    def refused(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refused)
    began = time.monotonic()
    assert send(receiver, 1) is None
    assert time.monotonic() - began < 4
    assert wait_until(lambda: offer(options).doors != receiver.doors)


def test_a_stream_without_large_batches_imports_nothing_for_certificates(receiver_options, started_receivers):
    """Importing cryptography takes 30 ms and 12 MB, and only the planner's worker of a large stream pays for it."""
    code = """
import sys
import pgonce.sink.data_source.spark_interface
from pgonce.sink.data_source.receiver import calls, client, launch, line
print("cryptography" in sys.modules)
line.new_identity()
print("cryptography" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
