"""``chappe mesh generate`` and ``benchmark``: recordings of real endpoints, played by real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.waiting import until

from chappe import Endpoint
from chappe.benchmark import run as running
from chappe.benchmark.config import BenchmarkNode
from chappe.benchmark.processes import BenchmarkProcess, Processes
from chappe.data.binary import encode
from chappe.errors import ChappeError
from chappe.mesh.messages import DATA
from chappe.storage.recordings.codec import RecordingEncoder
from chappe.storage.recordings.files import RecordingFiles

pytestmark = pytest.mark.process

NAMES = ("east", "north", "south", "west")


def record_ring(directory: Path) -> None:
    """Four endpoints, each peered with the next one; each publishes to all, and to the one opposite."""
    with ExitStack() as stack:
        made = [stack.enter_context(Endpoint(recording_directory=directory / name)) for name in NAMES]
        for name, endpoint in zip(NAMES, made, strict=True):
            endpoint.subscribe("/all", f"/only/{name}")
        ports = [endpoint.listen() for endpoint in made]
        for place, endpoint in enumerate(made):
            endpoint.peer("127.0.0.1", ports[(place + 1) % 4])
        for endpoint in made:
            assert all(endpoint.await_peer(other.id, PATIENCE_S) for other in made if other is not endpoint)
        made[0].attach_master("hosts")
        made[2].attach_clone("hosts", timeout=PATIENCE_S).put("key", {"a": 1})
        for place, endpoint in enumerate(made):
            opposite = NAMES[(place + 2) % 4]
            endpoint.publish_batch((f"/only/{opposite}/x", [number, "text"]) for number in range(30))
            endpoint.publish("/all/x", None)


def test_what_a_ring_did_is_played_and_nothing_is_lost(shell: Shell) -> None:
    record_ring(shell.directory)
    done = shell.run("mesh", "generate", *NAMES, "-o", "ring.conf")
    assert done.returncode == 0
    assert b"4 nodes: " in done.stderr
    done = shell.run("mesh", "benchmark", "ring.conf", "--json", "--plot", "ring.svg")
    assert (done.returncode, done.stderr) == (0, b"")
    facts = json.loads(done.stdout)
    assert facts["complete"]
    assert facts["total"]["lost"] == facts["total"]["surplus"] == 0
    nodes = {each["name"]: each for each in facts["nodes"]}
    assert set(nodes) == set(NAMES)
    assert nodes["west"]["received"] == nodes["west"]["expected"] == 33  # 30 for it, one of each other to all
    assert nodes["west"]["sent"] == 31
    assert nodes["east"]["sent"] > 31  # commands of its data store, too
    for each in nodes.values():
        assert each["frames_out"] > 0  # fewer than messages: what is published at once shares frames
        assert each["seconds"] > 0
    assert (shell.directory / "ring.svg").read_text().startswith("<svg")
    shell.env["COLUMNS"] = "120"
    drawn = shell.run("mesh", "benchmark", "ring.conf", "--plot").stdout.decode().splitlines()
    _, head, *bars, foot = drawn[drawn.index("") :]
    assert head.split() == ["node", "received", "at", "its", "fastest", "in/s", "out/s"]
    assert [each.split()[0] for each in bars] == list(NAMES)
    assert all("█" in each for each in bars)
    assert foot.startswith("a character of a curve is ")


def test_from_generate_to_benchmark_through_a_pipe(shell: Shell) -> None:
    record_ring(shell.directory)
    text = shell.run("mesh", "generate", *NAMES, "--exclude", "west").stdout
    assert b"west {" not in text
    done = shell.run("mesh", "benchmark", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["node", "east", "north", "south", "all"]
    assert "messages received in" in lines[-1]


def test_what_is_wrong_is_one_line(shell: Shell) -> None:
    (shell.directory / "x.conf").write_text("nodes {\n a { id = 5 }\n}")
    for arguments, code, problem in (
        (("benchmark", "x.conf"), 2, b"x.conf, line 2: node 'a' has no topics"),
        (("benchmark", "y.conf"), 2, b"y.conf: cannot be read"),
        (("benchmark", "x.conf", "--plot", "x.png"), 2, b"ends in .svg"),
        (("benchmark", "x.conf", "--plot", "no/x.svg"), 2, b"no such directory"),
        (("benchmark", "x.conf", "--plot", "--json"), 2, b"only one of --json and --plot without a file"),
        (("generate", "here"), 1, b"here is not a folder"),
    ):
        done = shell.run("mesh", *arguments)
        assert (done.returncode, done.stderr.count(b"\n")) == (code, 1)
        assert problem in done.stderr
    for options in (("--output-generator-file-cap", "5"), ("--recording-directory", "x.conf/below")):
        done = shell.run("node", "--listen", "127.0.0.1:0", *options)
        assert done.returncode in (1, 2)
        assert b"record" in done.stderr


def test_a_node_records_what_its_file_says(shell: Shell) -> None:
    (shell.directory / "node.toml").write_text(
        'listen = ["127.0.0.1:0"]\nrecording_directory = "recorded"\noutput_generator_file_cap = 5\n'
    )
    process = shell.start("node", "node.toml", "--json")
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    assert shell.stop(process)[0] == 0
    assert (shell.directory / "recorded" / "id.txt").read_text().strip() == facts["id"]


# -- when things go wrong in the midst ------------------------------------------------------------------------------


@pytest.fixture
def one_sender(tmp_path: Path) -> list[BenchmarkNode]:
    """A ring of four of which one sends, for a long time."""
    with_message = RecordingFiles(tmp_path / "sender", "id", True)
    with_message.append(RecordingEncoder().encode(b"/x", encode("x" * 10), DATA))
    with_message.close()
    nodes = [BenchmarkNode(name, peers=[NAMES[(place + 1) % 4]], topics=["/x"]) for place, name in enumerate(NAMES)]
    nodes[0].generator_file = tmp_path / "sender" / "messages.dat"
    nodes[0].num_outputs = 2_000_000
    for node in nodes[1:]:
        node.num_inputs = 2_000_000
    return nodes


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> dict[str, subprocess.Popen[bytes]]:
    """The processes of the benchmark that runs."""
    found: dict[str, subprocess.Popen[bytes]] = {}

    class Seen(Processes):
        def start(self, name: str) -> BenchmarkProcess:
            child = super().start(name)
            found[name] = child.process
            return child

    monkeypatch.setattr(running, "Processes", Seen)
    return found


def test_a_node_that_is_killed_is_told_and_what_is_missing(
    one_sender: list[BenchmarkNode], children: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(text: str, done: int, total: int | None) -> None:
        if text.startswith("received") and done:
            children["east"].kill()
            monkeypatch.setattr(running, "QUIET_S", 1.0)

    report = running.run(one_sender, PATIENCE_S, show)
    assert not report.complete
    assert report.troubles()[:2] == [
        "nothing was sent or received anywhere for 1 s",
        "east ended by SIGKILL",
    ]
    assert {each.name for each in report.nodes if each.missing} == set(NAMES[1:])
    assert all(each.poll() is not None for each in children.values())


def test_a_benchmark_whose_time_is_up_says_what_is_there(
    one_sender: list[BenchmarkNode], children: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic

    def show(text: str, done: int, total: int | None) -> None:
        if text.startswith("received") and done:
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 2 * PATIENCE_S)

    report = running.run(one_sender, PATIENCE_S, show)
    assert report.reason == "the time is up"
    assert all(each.received < 2_000_000 for each in report.nodes[1:])
    assert any(each.received for each in report.nodes[1:])
    assert all(each.ended is None for each in report.nodes)
    assert all(each.poll() is not None for each in children.values())


def test_a_node_that_cannot_begin_ends_it(
    one_sender: list[BenchmarkNode], children: dict[str, subprocess.Popen[bytes]]
) -> None:
    assert one_sender[0].generator_file is not None
    one_sender[0].generator_file.write_bytes(b"garbage")
    with pytest.raises(ChappeError, match=r"node east: .*magic number"):
        running.run(one_sender, PATIENCE_S, lambda text, done, total: None)
    assert all(each.poll() is not None for each in children.values())


def test_nodes_end_when_who_started_them_does() -> None:
    command = [sys.executable, "-P", "-m", "chappe.benchmark.node"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"order": "begin", "forwarding": true, "topics": [], "expected": 0, ')
        process.stdin.write(b'"file": null, "count": null}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["event"] == "ready"
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="only Linux tells whose child a process is")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_is_left_behind(shell: Shell, one_sender: list[BenchmarkNode], how: signal.Signals) -> None:
    from chappe.benchmark.config import render

    for node in one_sender:
        node.id = f"local:{node.name}"
    (shell.directory / "long.conf").write_text(render(one_sender))
    process = shell.start("mesh", "benchmark", "long.conf", "--json")
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: len(path.read_text().split()) == len(NAMES))
    children = [int(each) for each in path.read_text().split()]
    process.send_signal(how)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    until(lambda: not any(is_there(each) for each in children))


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
