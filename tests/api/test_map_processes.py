"""Shared maps in processes of their own: full disks, other programs on the port, crowds and large maps."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from tests.waiting import PATIENCE_S, until

from chappe import MapServer, SharedMap
from chappe.errors import BackendFailure, NoMaster, RecordTooLarge, UsageError
from chappe.kv.chp.events import MapRefused

SERVE = """
import resource, sys
from chappe import MapServer
with MapServer("127.0.0.1:0", backend=sys.argv[1], path=sys.argv[2]) as server:
    print(server.address, flush=True)
    for line in sys.stdin:
        print([str(each) for each in server.events()], flush=True)
"""


class Process:
    """A server with a backend, whose files cannot grow beyond a bound."""

    def __init__(self, backend: str, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, backend, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def limit(self, size: int) -> None:
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def events(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.process
@pytest.mark.parametrize("backend", ["sqlite", "rocksdb"])
def test_a_full_disk_refuses_writes_loses_nothing_and_recovers(tmp_path: Path, backend: str) -> None:
    process = Process(backend, tmp_path / "map")
    confirmed: dict[str, str] = {}
    refused = 0
    with SharedMap(process.address, values=str, timeout=PATIENCE_S) as shared:
        shared["/first"] = confirmed["/first"] = "x"
        process.limit(400_000)
        for number in range(200):
            key, value = f"/{number}", "x" * 20_000
            try:
                shared.set(key, value, timeout=PATIENCE_S)
                confirmed[key] = value
            except BackendFailure:
                refused += 1
                if refused == 5:
                    break
        assert refused == 5
        assert dict(shared) == confirmed
        assert "the backend refused a commit" in process.events()
        process.limit(resource.RLIM_INFINITY)

        def recovered() -> bool:
            try:
                shared.set("/after", "y", timeout=PATIENCE_S)
            except BackendFailure:
                return False
            return True

        until(recovered)
        confirmed["/after"] = "y"
    process.kill()
    process = Process(backend, tmp_path / "map")
    with SharedMap(process.address, values=str, timeout=PATIENCE_S) as shared:
        assert dict(shared) == confirmed
    process.kill()


# -- something else on the port ----------------------------------------------------------------------------------------


@pytest.fixture
def talker() -> Iterator[int]:
    """A program that speaks first, and no ZeroMQ."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def talk() -> None:
            while True:
                try:
                    accepted, _ = listening.accept()
                except OSError:
                    return
                with accepted:
                    accepted.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 100)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_another_program_on_the_port_is_one_clear_error(talker: int) -> None:
    with pytest.raises(NoMaster, match="no map server answered"):
        SharedMap(f"127.0.0.1:{talker}", timeout=0.5)


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.REP, zmq.ROUTER])
def test_another_zeromq_program_on_the_port_is_one_clear_error(kind: int) -> None:
    sock: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    sock.setsockopt(zmq.LINGER, 0)
    port = sock.bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(NoMaster, match="no map server answered"):
        SharedMap(f"127.0.0.1:{port}", timeout=0.5)
    sock.close()


def test_the_server_of_another_map_is_named(tmp_path: Path) -> None:
    with MapServer("127.0.0.1:0", name="prices") as server:
        with SharedMap(server.address, name="orders", timeout=0) as shared:
            until(lambda: any(isinstance(each, MapRefused) for each in shared.events()))
            with pytest.raises(NoMaster, match=f"{server.address} has the map 'prices'"):
                shared.wait_ready(0.01)
            assert (shared.state, dict(shared)) == ("connecting", {})
        with SharedMap(server.address, name="prices") as shared:
            shared["/eur"] = b"1.08"
    with pytest.raises(UsageError):
        MapServer("127.0.0.1:0", name="x" * 1000)


def test_two_servers_of_one_file_or_port_are_one_clear_error(tmp_path: Path) -> None:
    from chappe.errors import AddressInUse, StorageLocked

    with MapServer("127.0.0.1:0", backend="sqlite", path=tmp_path / "map") as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(StorageLocked):
            MapServer("127.0.0.1:0", backend="sqlite", path=tmp_path / "map")
        for place in (port - 2, port - 1, port, port + 1, port + 2):
            with pytest.raises(AddressInUse):
                MapServer(f"127.0.0.1:{place}")
        with SharedMap(server.address) as shared:
            shared["/a"] = b"x"


# -- large things and crowds -------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MapServer]:
    with MapServer("127.0.0.1:0") as made:
        yield made


def test_what_is_too_large_for_a_step_is_refused_before_it_is_sent(server: MapServer) -> None:
    with SharedMap(server.address, values=str) as shared:
        with pytest.raises(RecordTooLarge):
            shared.step({"/a": "x" * 8_000_000, "/b": "x" * 8_000_000})
        with pytest.raises(RecordTooLarge):
            shared["/a"] = "x" * 17_000_000
        with pytest.raises(UsageError):
            SharedMap(server.address, subtree="x" * 500)
        shared.update({"/a": "x" * 16_000_000, "/b": "x" * 200_000, "/c": "x" * 200_000})
        with SharedMap(server.address, values=str) as other:
            assert {key: len(value) for key, value in other.items()} == {
                "/a": 16_000_000, "/b": 200_000, "/c": 200_000,
            }  # fmt: skip
        shared.clear()
        assert dict(shared) == {}


def test_a_crowd_of_originals_gets_whole_snapshots(server: MapServer) -> None:
    with SharedMap(server.address) as shared:
        shared.set_many({f"/{number}": b"x" for number in range(500)})
        crowd = []
        for _ in range(200):
            sock: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.RCVHWM, 0)
            sock.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
            sock.connect(f"tcp://{server.address}")
            sock.send_multipart([b"ICANHAZ?", b""])
            crowd.append(sock)
        counts = []
        for sock in crowd[::-1]:
            keys = set()
            while (frames := sock.recv_multipart())[0] != b"KTHXBAI":
                keys.add(frames[0])
            counts.append(len(keys))
            sock.close()
        assert counts == [500] * 200
        shared["/still"] = b"here"
