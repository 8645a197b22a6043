"""Two real map servers of a pair: killed, stopped, both at once, configured wrongly, parted with a witness."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
import zmq
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until

from chappe import MapServer, SharedMap, Witness
from chappe.errors import AddressInUse, UsageError
from chappe.replication.binary_star.events import SameRole

Text = SharedMap[str]
SERVE = """
import json, sys
from chappe import MapServer
address, options = sys.argv[1], json.loads(sys.argv[2])
with MapServer(address, **options) as server:
    print(server.address, flush=True)
    for line in sys.stdin:
        print(json.dumps([str(each) for each in server.events()]), server.status().pair, flush=True)
"""


class Server:
    """One server of a pair, as a process."""

    def __init__(self, address: str, partner: str, role: str, **options: object) -> None:
        import json

        self.arguments = [address, json.dumps({"partner": partner, "role": role, **options})]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *self.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == self.arguments[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


@pytest.fixture
def addresses() -> tuple[str, str]:
    return free_address(4), free_address(4)


@pytest.fixture
def servers(addresses: tuple[str, str]) -> Iterator[tuple[Server, Server]]:
    one, two = addresses
    primary, backup = Server(one, two, "primary"), Server(two, one, "backup")
    yield primary, backup
    primary.kill()
    backup.kill()


@pytest.fixture
def shared(addresses: tuple[str, str], servers: tuple[Server, Server]) -> Iterator[Text]:
    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as made:
        until(lambda: "paired" in servers[0].ask())
        yield made


def write(shared: Text, key: str, value: str) -> float:
    """Write, and see how long it took."""
    began = monotonic()
    shared.set(key, value, timeout=PATIENCE_S)
    return monotonic() - began


@pytest.mark.process
def test_a_killed_primary_is_replaced_with_all_that_was_confirmed(
    addresses: tuple[str, str], servers: tuple[Server, Server], shared: Text
) -> None:
    shared.set_many({f"/{number}": "x" for number in range(500)})
    servers[0].kill()
    seconds = write(shared, "/after", "y")

    assert seconds < PATIENCE_S
    assert shared.server == addresses[1]
    assert len(shared) == 501
    servers[0].start()
    until(lambda: "paired" in servers[1].ask())
    servers[1].kill()
    write(shared, "/again", "z")
    assert shared.server == addresses[0]
    assert len(shared) == 502


@pytest.mark.process
def test_a_primary_that_stood_still_steps_down(
    addresses: tuple[str, str], servers: tuple[Server, Server], shared: Text
) -> None:
    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as reader:
        servers[0].process.send_signal(signal.SIGSTOP)
        write(shared, "/a", "1")
        servers[0].process.send_signal(signal.SIGCONT)
        until(lambda: "state='passive'" in servers[0].ask())
        until(lambda: "paired" in servers[1].ask())
        write(shared, "/b", "2")
        until(lambda: len(reader) == 2)
        assert shared.server == reader.server == addresses[1]


@pytest.mark.process
def test_both_may_be_killed_at_once(addresses: tuple[str, str], tmp_path: Path) -> None:
    one, two = addresses
    servers = [
        Server(one, two, "primary", backend="sqlite", path=str(tmp_path / "one")),
        Server(two, one, "backup", backend="sqlite", path=str(tmp_path / "two")),
    ]
    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as shared:
        until(lambda: "paired" in servers[0].ask())
        shared.set_many({f"/{number}": "x" for number in range(200)})
        shared.set("/late", "y", wait=False)
        for server in servers:
            server.kill()
        for server in reversed(servers):
            server.start()
        write(shared, "/after", "z")
        assert len(shared) == 202
    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as anew:
        assert len(anew) == 202
    for server in servers:
        server.kill()


@pytest.mark.process
def test_two_primaries_say_so_and_one_of_them_is_mended(addresses: tuple[str, str]) -> None:
    one, two = addresses
    first, second = Server(one, two, "primary"), Server(two, one, "primary")
    with SharedMap(*addresses, values=str, timeout=0) as shared:
        said = ""
        text = str(SameRole(1))

        def complains() -> bool:
            nonlocal said
            said += first.ask() + second.ask()
            return text in said

        until(complains)
        second.kill()
        second.arguments[1] = second.arguments[1].replace("primary", "backup")
        second.start()
        write(shared, "/a", "1")
        assert dict(shared) == {"/a": "1"}
    first.kill()
    second.kill()


@pytest.mark.process
def test_a_witness_lets_one_go_on(addresses: tuple[str, str], tmp_path: Path) -> None:
    one, two = addresses
    with Witness("127.0.0.1:0", path=tmp_path / "witness") as witness:
        primary = Server(one, two, "primary", witness=witness.address)
        backup = Server(two, one, "backup", witness=witness.address)
        with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as shared:
            until(lambda: "paired" in primary.ask())
            write(shared, "/a", "1")
            primary.kill()
            write(shared, "/b", "2")
            assert shared.server == two
            until(lambda: "alone" in backup.ask())
            assert any("leads in term 2" in str(each) for each in witness.events())
            assert dict(shared) == {"/a": "1", "/b": "2"}
        backup.kill()


@pytest.mark.parametrize(
    "options",
    [
        {"role": "primary"},
        {"partner": "127.0.0.1:7000"},
        {"partner": "127.0.0.1:0", "role": "primary"},
        {"partner": "127.0.0.1:7000", "role": "primary", "pair": "x" * 256},
        {"witness": "127.0.0.1:7000"},
    ],
)
def test_half_a_pair_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        MapServer("127.0.0.1:7100", **options)  # type: ignore[arg-type]


def test_a_taken_port_is_one_clear_error(addresses: tuple[str, str]) -> None:
    host, _, port = addresses[0].partition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port) + 3))
        taken.listen()
        with pytest.raises(AddressInUse, match="is in use"):
            MapServer(addresses[0], partner=addresses[1], role="primary")


def test_garbage_on_the_fourth_port_harms_nobody(addresses: tuple[str, str]) -> None:
    one, two = addresses
    host, _, port = one.partition(":")
    with MapServer(one, partner=two, role="primary") as server, zmq.Context() as context:
        with context.socket(zmq.XSUB) as sock:
            sock.connect(f"tcp://{host}:{int(port) + 3}")
            for each in (b"", b"garbage", b"\1" * 1000):
                sock.send_multipart([each, each])
            until(lambda: server.status().malformed)
        with SharedMap(one, values=str, timeout=PATIENCE_S) as shared:
            shared.set("/a", "1", timeout=PATIENCE_S)


@pytest.mark.process
def test_the_file_of_a_pair_is_not_served_alone(addresses: tuple[str, str], tmp_path: Path) -> None:
    one, two = addresses
    path = tmp_path / "map"
    with MapServer(one, partner=two, role="primary", backend="sqlite", path=path) as server:
        with SharedMap(one, values=str, timeout=PATIENCE_S) as shared:
            shared["/a"] = "1"
        assert server.status().pair is not None
    with pytest.raises(UsageError, match="partner"):
        MapServer("127.0.0.1:0", backend="sqlite", path=path)
