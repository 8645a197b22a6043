"""Recording an endpoint: what is in the folder, and that nothing of it harms the endpoint."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints import Make
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint
from chappe.api.mesh.arguments import Encoded
from chappe.api.mesh.subscriber import StatusSubscriber
from chappe.data.binary import encode
from chappe.errors import StorageError, StorageLocked, UsageError
from chappe.mesh.events import RecordingIncomplete, RecordingStopped
from chappe.mesh.messages import COMMAND, DATA
from chappe.runtime import recorder
from chappe.storage.recordings.codec import HEADER, RecordedMessage, entries
from chappe.storage.recordings.files import RecordingFiles


def messages(directory: Path) -> list[RecordedMessage]:
    return list(entries((directory / "messages.dat").read_bytes()))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def hear(statuses: StatusSubscriber, kind: type) -> Any:
    while (event := statuses.get(PATIENCE_S)) is not None:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__}")


def test_a_recording_has_what_the_endpoint_published_and_not_what_it_passed_on(make: Make, tmp_path: Path) -> None:
    middle = make(recording_directory=tmp_path / "new" / "middle")
    left, right = make(), make()
    port = middle.listen()
    left.peer("127.0.0.1", port)
    right.peer("127.0.0.1", port)
    subscriber = right.subscribe("/a", "/b")
    middle.subscribe("/c", "/d").close()
    middle.forward("/e")
    for each in (left, middle):
        until(lambda: b"/b" in each.core.peer_subscriptions())  # noqa: B023
    left.publish("/a/forwarded", "not recorded")
    assert middle.publish("/a/one", ["secret", 1]) == 1
    assert middle.publish_batch([("/b", "x" * 5), ("/a/one", 7)]) == 2
    assert middle.publish("/nobody", None) == 0
    middle.publish("/a/direct", "not recorded", to=right.id)
    assert {subscriber.get(PATIENCE_S).topic for _ in range(5)} == {"/a/forwarded", "/a/one", "/b", "/a/direct"}  # type: ignore[union-attr]
    middle.close()
    folder = tmp_path / "new" / "middle"
    assert sorted(os.listdir(folder)) == ["broker.conf", "id.txt", "messages.dat", "peers.txt", "topics.txt"]
    assert lines(folder / "id.txt") == [middle.id]
    assert sorted(lines(folder / "peers.txt")) == sorted([left.id, right.id])
    assert lines(folder / "topics.txt") == ["/c", "/d", "/e"]
    assert "disable-forwarding = false" in (folder / "broker.conf").read_text()
    found = messages(folder)
    assert [(each.topic, each.kind, len(each.payload())) for each in found] == [
        (b"/a/one", DATA, len(encode(["secret", 1]))),
        (b"/b", DATA, len(encode("x" * 5))),
        (b"/a/one", DATA, len(encode(7))),
        (b"/nobody", DATA, len(encode(None))),
    ]
    assert b"secret" not in (folder / "messages.dat").read_bytes()


def test_commands_of_data_stores_are_recorded_unless_they_are_for_one(make: Make, tmp_path: Path) -> None:
    master, clone = make(recording_directory=tmp_path / "master"), make()
    store = master.attach_master("things")
    clone.peer("127.0.0.1", master.listen())
    copy = clone.attach_clone("things")
    store.put("key", "value")
    until(lambda: "key" in copy)
    master.close()
    found = messages(tmp_path / "master")
    assert {(each.topic, each.kind) for each in found} == {(b"things/<$>/data/clone", COMMAND)}
    assert [each.payload()[56] for each in found].count(0) == 1  # one Put; snapshots and confirmations are for one
    assert "things/<$>/data/master" in lines(tmp_path / "master" / "topics.txt")


def test_the_cap_ends_it_and_the_endpoint_records_no_more(make: Make, tmp_path: Path) -> None:
    endpoint = make(recording_directory=tmp_path, output_generator_file_cap=3)
    endpoint.publish_batch(("/t", number) for number in range(10))
    endpoint.publish("/t", 0)
    assert endpoint._record is None
    endpoint.close()
    assert len(messages(tmp_path)) == 3


def test_a_recording_gives_way_to_the_next_one_and_other_files_stay(make: Make, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for count in (5, 1):
        with Endpoint(recording_directory=tmp_path) as endpoint:
            endpoint.publish_batch(("/t", number) for number in range(count))
    assert len(messages(tmp_path)) == 1
    assert (tmp_path / "notes").read_text() == "mine"


def test_two_endpoints_do_not_record_into_one_folder(make: Make, tmp_path: Path) -> None:
    first = make(recording_directory=tmp_path)
    first.publish("/t", 1)
    with pytest.raises(StorageLocked, match="a directory of its own"):
        Endpoint(recording_directory=tmp_path)
    first.close()
    assert len(messages(tmp_path)) == 1


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot record into .*file"):
        Endpoint(recording_directory=tmp_path / place)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_disk_that_is_full_at_the_start_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "messages.dat").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="record into"):
        Endpoint(recording_directory=tmp_path)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recording_directory too"):
        Endpoint(output_generator_file_cap=5)
    with pytest.raises(UsageError, match="at least 1"):
        Endpoint(recording_directory=tmp_path, output_generator_file_cap=0)
    with pytest.raises(UsageError, match="not empty"):
        Endpoint(recording_directory="")


def fail(patch: pytest.MonkeyPatch, room: int) -> None:
    """The disk has room for so many bytes in all, and takes half of what does not fit."""
    write = os.write

    def limited(fd: int, data: Any) -> int:
        nonlocal room
        taken = len(data) if len(data) <= room else room // 2
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= taken
        return write(fd, data[:taken])

    patch.setattr("chappe.storage.recordings.files.os.write", limited)


def test_a_disk_that_fills_up_ends_the_recording_and_not_the_endpoint(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, peer = make(recording_directory=tmp_path), make()
    subscriber = peer.subscribe("/t")
    peer.peer("127.0.0.1", endpoint.listen())
    until(lambda: b"/t" in endpoint.core.peer_subscriptions())
    statuses = endpoint.statuses()
    endpoint.publish("/t", 1)
    until(lambda: len(messages(tmp_path)) == 1)
    with monkeypatch.context() as patch:
        fail(patch, 10)
        endpoint.publish_batch((f"/t/{number}", "x") for number in range(100))
        event = hear(statuses, RecordingStopped)
    assert str(event) == f"stopped recording into {tmp_path}: No space left on device; the endpoint goes on"
    assert endpoint._record is None
    assert len(messages(tmp_path)) == 1  # nothing is left of an entry that did not fit
    endpoint.subscribe("/later")
    endpoint.publish("/t", 2)
    got = subscriber.get_many(102, PATIENCE_S)
    while len(got) < 102:
        got += subscriber.get_many(102 - len(got), PATIENCE_S)
    assert [event for event in statuses.poll() if isinstance(event, RecordingStopped)] == []  # told once
    endpoint.close()
    assert len(messages(tmp_path)) == 1


def test_what_a_slow_disk_does_not_take_is_left_out_and_counted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "WAITING_MAX", 10)
    began, go = threading.Event(), threading.Event()
    append: Callable[[RecordingFiles, bytes], None] = RecordingFiles.append

    def slowly(files: RecordingFiles, raw: bytes) -> None:
        if raw != HEADER:
            began.set()
            assert go.wait(PATIENCE_S)
        append(files, raw)

    monkeypatch.setattr(RecordingFiles, "append", slowly)
    endpoint = make(recording_directory=tmp_path)
    statuses = endpoint.statuses()
    endpoint.publish("/t", 0)
    assert began.wait(PATIENCE_S)
    for number in range(25):
        endpoint.publish("/t", number)  # does not wait
    go.set()
    event = hear(statuses, RecordingIncomplete)
    assert event.count == 15
    endpoint.close()
    assert len(messages(tmp_path)) == 11


def test_a_payload_that_is_no_value_is_left_out_and_counted(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = make(recording_directory=tmp_path)
    statuses = endpoint.statuses()
    endpoint.publish("/t", Encoded(b"\xff"))
    endpoint.publish("/t", 5)
    assert hear(statuses, RecordingIncomplete).count == 1
    endpoint.close()
    assert len(messages(tmp_path)) == 1
