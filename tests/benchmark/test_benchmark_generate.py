"""Configurations made of recordings: who peers with whom, and who receives how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chappe.benchmark.config import BenchmarkNode, load, render
from chappe.benchmark.generate import generate, read
from chappe.errors import ChappeError, StorageError, StorageFormat, UsageError
from chappe.mesh.messages import DATA
from chappe.storage.recordings.codec import RecordingEncoder
from chappe.storage.recordings.files import PEERS_FILE, TOPICS_FILE, RecordingFiles

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    def make(
        name: str, peers: str = "", topics: Sequence[str] = (), sends: Sequence[str] = (), forwarding: bool = True
    ) -> Path:
        files = RecordingFiles(tmp_path / name, f"id-{name}", forwarding)
        encoder = RecordingEncoder()
        files.append(b"".join([encoder.encode(topic.encode(), b"\0", DATA) for topic in sends]))
        files.append_lines(PEERS_FILE, [f"id-{each}".encode() for each in peers])
        files.append_lines(TOPICS_FILE, [each.encode() for each in topics])
        files.close()
        return tmp_path / name

    return make


def made(*folders: Path, excluded: Sequence[str] = ()) -> dict[str, BenchmarkNode]:
    return {node.name: node for node in generate([read(each) for each in folders], excluded)}


def inputs(nodes: dict[str, BenchmarkNode]) -> dict[str, dict[str, int]]:
    return {name: node.inputs_by_node for name, node in nodes.items()}


def test_in_a_ring_everybody_gets_once_what_it_wants(folder: Folder, tmp_path: Path) -> None:
    folders = [
        folder("a", "bd", ["/x", "/a"], ["/x/1", "/a/1", "/b/1", "/b/1", "/nobody"]),
        folder("b", "ac", ["/x", "/b", "/x"], ["/x/2"]),
        folder("c", "bd", ["/x"]),
        folder("d", "ca", ["/b/1"], ["/b"]),
    ]
    nodes = made(*folders)
    assert inputs(nodes) == {"a": {"b": 1}, "b": {"a": 3, "d": 1}, "c": {"a": 1, "b": 1}, "d": {"a": 2}}
    assert [node.num_inputs for node in nodes.values()] == [1, 4, 2, 2]
    assert {name: node.peers for name, node in nodes.items()} == {"a": ["b", "d"], "b": ["c"], "c": ["d"], "d": []}
    assert [node.id for node in nodes.values()] == ["local:a", *[f"tcp://127.0.0.1:800{n}" for n in range(3)]]
    assert nodes["b"].topics == ["/b", "/x"]
    assert nodes["c"].generator_file is None  # it published nothing
    assert made(*reversed(folders)) == nodes  # the order in which they are given does not matter
    path = tmp_path / "bench.conf"
    path.write_text(render(list(nodes.values())))
    assert {node.name: node for node in load(path)} == nodes


def test_who_does_not_forward_cuts_the_way(folder: Folder) -> None:
    nodes = made(
        folder("a", "b", [], ["/x"]), folder("b", "ac", ["/x"], forwarding=False), folder("c", "b", ["/x"], ["/x"])
    )
    assert inputs(nodes) == {"a": {}, "b": {"a": 1, "c": 1}, "c": {}}
    assert not nodes["b"].forwarding


def test_a_node_can_be_left_out(folder: Folder) -> None:
    folders = [folder("a", "bc", [], ["/x"]), folder("b", "ac", ["/x"], ["/x"]), folder("c", "ab", ["/x"], ["/x"])]
    assert inputs(made(*folders, excluded=["b"])) == {"a": {}, "c": {"a": 1}}
    with pytest.raises(UsageError, match="'z' is not among the recordings"):
        made(*folders, excluded=["z"])


def test_peers_without_a_recording_are_told_and_left_out(folder: Folder) -> None:
    told: list[str] = []
    recordings = [read(folder("a", "byz", [], ["/x"])), read(folder("b", "a", ["/x"]))]
    assert [node.peers for node in generate(recordings, (), told.append)] == [["b"], []]
    assert told == ["a: 2 of its peers have no recording here and are left out"]


def test_a_recording_whose_writer_was_killed_is_used_up_to_there(folder: Folder) -> None:
    place = folder("a", sends=["/x", "/x", "/y"])
    raw = (place / "messages.dat").read_bytes()
    (place / "messages.dat").write_bytes(raw[:-1])
    told: list[str] = []
    assert read(place, told.append).published == {b"/x": 2}
    assert told == [f"{place}/messages.dat ends there: in the entry at byte 21: a shape is cut off after 24 bytes"]


def test_the_original_before_2021_says_otherwise_that_it_forwards(folder: Folder) -> None:
    place = folder("a")
    (place / "broker.conf").write_text("broker {\n  forward = false\n  ttl = 20\n}\nlogger { console = 'x' }\n")
    assert not read(place).forwarding
    (place / "broker.conf").unlink()
    assert read(place).forwarding


def test_recordings_that_make_no_benchmark_say_why(folder: Folder, tmp_path: Path) -> None:
    a, b, c = folder("a", "b", ["/y"], ["/x"]), folder("b", "a", ["/z"]), folder("c")
    twin = folder("sub/a", "b")
    other = folder("other", "b")
    (other / "id.txt").write_text("id-a\n")
    cases: list[tuple[list[Path], str]] = [
        ([a], "1 recordings: at least 2"),
        ([a, b], "nobody would receive anything"),
        ([a, b, c], "c is peered with none of the others"),
        ([a, twin], "have the same name"),
        ([a, other], "have the same id"),
    ]
    for folders, problem in cases:
        with pytest.raises(UsageError, match=problem):
            made(*folders)


def test_folders_that_are_no_recordings_say_why(folder: Folder, tmp_path: Path) -> None:
    def refused(place: Path, kind: type[ChappeError], problem: str) -> None:
        with pytest.raises(kind, match=problem):
            read(place)

    refused(tmp_path / "missing", StorageError, "is not a folder")
    refused(tmp_path, StorageError, "it has no id.txt and no messages.dat")
    place = folder("a", sends=["/x"])
    (place / "id.txt").write_text("\n")
    refused(place, StorageFormat, r"id.txt is empty")
    (place / "id.txt").write_text("x")
    raw = (place / "messages.dat").read_bytes()
    (place / "messages.dat").write_bytes(raw[:-1] + b"\x99")
    refused(place, StorageFormat, r"messages.dat: in the entry at byte 9: type 153")
    (place / "messages.dat").write_bytes(b"GIF89a")
    refused(place, StorageFormat, "does not begin with the magic number")
    (place / "broker.conf").write_text("broker {")
    refused(place, ChappeError, r"broker.conf, line 1: the section")
