"""Two real map servers of a pair: killed, stopped, both at once, configured wrongly, parted with a witness."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.api.relay import Relay
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint, MapServer, SharedMap, Witness
from chappe.errors import AddressInUse, NoMaster, StorageFormat, UsageError
from chappe.kv.chp.events import MapWritesLost
from chappe.replication.binary_star.events import Granted, SameRole
from chappe.replication.binary_star.messages import BACKUP, PRIMARY, Claim, decode_answer, encode_claim
from chappe.runtime.map_pair_link import LISTENERS

Text = SharedMap[str]
SERVE = """
import json, sys
from dataclasses import asdict
from chappe import MapServer
address, options = sys.argv[1], json.loads(sys.argv[2])
with MapServer(address, **options) as server:
    print(server.address, flush=True)
    for line in sys.stdin:
        events = [str(each) for each in server.events()]
        print(json.dumps([events, asdict(server.status().pair)]), flush=True)
"""


class Server:
    """One server of a pair, as a process."""

    def __init__(self, address: str, partner: str, role: str, **options: object) -> None:
        self.address = address
        self.arguments = [address, json.dumps({"partner": partner, "role": role, **options})]
        self.start()

    def start(self) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *self.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == self.arguments[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self) -> dict[str, Any]:
        """What it knows of the pair; its events are added to ``said``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        said, pair = json.loads(self.process.stdout.readline())
        self.said += said
        found: dict[str, Any] = pair
        return found

    def refuses(self) -> bool:
        """Whether it was asked to take over, and did not: the other one may have had more."""
        self.ask()
        ways = ("active in term", "passive: ", "a client asks and nobody serves")
        return next((each for each in reversed(self.said) if each.startswith(ways)), "").startswith(ways[2])


Servers = tuple[Server, Server]


@pytest.fixture
def addresses() -> tuple[str, str]:
    return free_address(4), free_address(4)


@pytest.fixture
def servers(addresses: tuple[str, str]) -> Iterator[Servers]:
    one, two = addresses
    primary, backup = Server(one, two, "primary"), Server(two, one, "backup")
    yield primary, backup
    primary.kill()
    backup.kill()


@pytest.fixture
def shared(addresses: tuple[str, str], servers: Servers) -> Iterator[Text]:
    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as made:
        yield made


def paired(servers: Servers) -> Servers:
    """Wait until both have all that was confirmed; the active one, and the other."""
    found: list[Servers] = []

    def so() -> bool:
        for pair in (servers, servers[::-1]):
            if pair[0].ask()["confirms"] == "paired":
                found.append(pair)
        return bool(found)

    until(so)
    return found[0]


def take_over(
    shared: Text, servers: Servers, key: str, stop: Callable[[Server], None], again: Callable[[Server], None]
) -> Servers:
    """Stop the active one, and write: the one that has taken over, and the one that was stopped.

    One that stood still just then, or was parted from the other, does not take over, and must not. So we do it again
    until the two were together.
    """
    while True:
        active, other = paired(servers)
        stop(active)
        shared.set(key, "x", wait=False)
        until(lambda other=other: not shared.pending or other.refuses())  # type: ignore[misc]
        if other.ask()["state"] == "active":
            until(lambda: not shared.pending)
            return other, active
        again(active)
        until(lambda: not shared.pending)


@pytest.mark.process
def test_a_killed_server_is_replaced_with_all_that_was_confirmed(servers: Servers, shared: Text) -> None:
    shared.set_many({f"/{number}": "x" for number in range(500)})
    active, killed = take_over(shared, servers, "/after", Server.kill, Server.start)

    until(lambda: shared.server == active.address)
    assert len(shared) == 501
    killed.start()
    active, _ = take_over(shared, servers, "/again", Server.kill, Server.start)
    until(lambda: shared.server == active.address)
    assert len(shared) == 502


@pytest.mark.process
def test_a_server_that_stood_still_steps_down(addresses: tuple[str, str], servers: Servers, shared: Text) -> None:
    def stop(server: Server) -> None:
        server.process.send_signal(signal.SIGSTOP)

    def go_on(server: Server) -> None:
        server.process.send_signal(signal.SIGCONT)

    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as reader:
        _, stopped = take_over(shared, servers, "/a", stop, go_on)
        stopped.said.clear()
        go_on(stopped)
        until(lambda: stopped.ask() and any(each.startswith("no longer active") for each in stopped.said))
        paired(servers)
        shared.set("/b", "2", timeout=PATIENCE_S)
        until(lambda: dict(reader) == dict(shared) == {"/a": "x", "/b": "2"})
        until(lambda: shared.server == reader.server is not None)


@pytest.mark.process
def test_both_may_be_killed_at_once(addresses: tuple[str, str], tmp_path: Path) -> None:
    one, two = addresses
    servers = (
        Server(one, two, "primary", backend="sqlite", path=str(tmp_path / "one")),
        Server(two, one, "backup", backend="sqlite", path=str(tmp_path / "two")),
    )
    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as shared:
        shared.set_many({f"/{number}": "x" for number in range(200)})
        active, passive = paired(servers)
        shared.set("/late", "y", wait=False)
        for server in (passive, active):  # the passive one first: it is not to take over in between
            server.process.kill()
        for server in (passive, active):
            server.kill()
            server.start()
        shared.set("/after", "z", timeout=PATIENCE_S)
        assert len(shared) == 202
    with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as anew:
        assert len(anew) == 202
    for server in servers:
        server.kill()


@pytest.mark.process
def test_a_split_pair_tells_clients_which_confirmed_writes_and_deletions_are_undone(
    addresses: tuple[str, str],
) -> None:
    one, two = addresses
    relays = to_one, to_two = Relay(one, 4), Relay(two, 4)
    servers = Server(one, to_two.address, "primary"), Server(two, to_one.address, "backup")
    try:
        with (
            SharedMap(one, to_two.address, values=str, timeout=PATIENCE_S) as left,
            SharedMap(two, to_one.address, values=str, timeout=PATIENCE_S) as right,
        ):
            left.set_many({f"/old/{number}": "x" for number in range(20)}, timeout=PATIENCE_S)
            _part(servers, relays, left, right)
            left.set_many({f"/new/{number}": "y" for number in range(190)}, timeout=PATIENCE_S)
            for number in range(5):
                left.delete(f"/old/{number}", timeout=PATIENCE_S)
            for relay in relays:
                relay.mend()
            lost: list[MapWritesLost] = []
            others: list[object] = []

            def told() -> bool:
                lost.extend(each for each in left.events() if isinstance(each, MapWritesLost))
                others.extend(each for each in right.events() if isinstance(each, MapWritesLost))
                return bool(lost)

            until(told)
            until(lambda: dict(left) == dict(right) and left.state == "active")
            told()
            [event] = lost
            assert (event.count, event.deleted_count) == (191, 5)
            assert {*event.keys} == {"/left", *(f"/new/{number}" for number in range(190))}
            assert {*event.deleted_keys} == {f"/old/{number}" for number in range(5)}
            assert others == []
            assert "/old/0" in left
            assert "/new/0" not in left
    finally:
        for server in servers:
            server.kill()
        for relay in relays:
            relay.close()


def _part(servers: Servers, relays: tuple[Relay, Relay], left: Text, right: Text) -> None:
    """Have each server serve its own client, neither knowing of the other; the second one has taken over.

    A server that stood still just then does not take over, and must not: then all is mended and done again.
    """
    while True:
        active, _ = paired(servers)
        for relay in relays:
            relay.cut()
        right.set("/right", "x", wait=False)
        left.set("/left", "x", wait=False)
        until(lambda: not (left.pending or right.pending) or any(each.refuses() for each in servers))
        states = [each.ask()["state"] for each in servers]
        if active is servers[0] and states == ["active", "active"] and not (left.pending or right.pending):
            return
        for relay in relays:
            relay.mend()
        until(lambda: not (left.pending or right.pending))
        if active is not servers[0]:  # it has taken over in an earlier attempt: have it give way
            servers[1].kill()
            left.set("/left", "y", timeout=PATIENCE_S)
            servers[1].start()


def test_where_servers_are_there_and_none_serves_that_is_said(addresses: tuple[str, str]) -> None:
    one, two = addresses

    def absence() -> str:
        with pytest.raises(NoMaster) as raised:
            SharedMap(*addresses, timeout=0.5)
        return str(raised.value)

    assert absence() == f"no map server answered at {one} nor {two} in time: start one, or give its address"
    with MapServer(one, partner=two, role="backup"):  # it has never met its primary
        until(lambda: absence() == f"no map server is active: {one} is passive, and it says why")


@pytest.mark.process
def test_two_primaries_say_so_and_one_of_them_is_mended(addresses: tuple[str, str]) -> None:
    one, two = addresses
    first, second = Server(one, two, "primary"), Server(two, one, "primary")
    with SharedMap(*addresses, values=str, timeout=0) as shared:
        text = str(SameRole(PRIMARY))

        def complains() -> bool:
            first.ask()
            second.ask()
            return text in first.said + second.said

        until(complains)
        second.kill()
        second.arguments[1] = second.arguments[1].replace("primary", "backup")
        second.start()
        shared.set("/a", "1", timeout=PATIENCE_S)
        assert dict(shared) == {"/a": "1"}
    first.kill()
    second.kill()


@pytest.mark.process
def test_a_witness_lets_one_go_on(addresses: tuple[str, str], tmp_path: Path) -> None:
    one, two = addresses
    with Witness("127.0.0.1:0", path=tmp_path / "witness") as witness:
        servers = (
            Server(one, two, "primary", witness=witness.address),
            Server(two, one, "backup", witness=witness.address),
        )
        with SharedMap(*addresses, values=str, timeout=PATIENCE_S) as shared:
            shared.set("/a", "1", timeout=PATIENCE_S)
            active, _ = take_over(shared, servers, "/b", Server.kill, Server.start)
            until(lambda: active.ask()["confirms"] == "alone")
            pair = active.ask()
            role = PRIMARY if pair["role"] == "primary" else BACKUP
            assert Granted(b"", role, pair["term"], True) in witness.events()
            assert dict(shared) == {"/a": "1", "/b": "x"}
        active.kill()


def claim(address: str, role: int, pair: bytes, base: int = 0) -> bool:
    """Ask a witness to go on alone in term 1, or 2; returns whether it agrees."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.connect(f"tcp://{address}")
        sock.send(encode_claim(Claim(True, role, role, 1, role, base), pair))
        assert sock.poll(int(PATIENCE_S * 1000))
        return decode_answer(sock.recv()).granted


@pytest.mark.parametrize("backend", ["sqlite", "rocksdb"])
def test_a_witness_that_is_started_again_knows_what_it_has_granted(backend: Any, tmp_path: Path) -> None:
    path, pairs = tmp_path / "witness", (b"", b"prices", "größe".encode(), b"\xff\x00")
    with Witness("127.0.0.1:0", path=path, backend=backend) as witness:
        assert [claim(witness.address, PRIMARY, pair) for pair in pairs] == [True] * 4
    with Witness("127.0.0.1:0", path=path, backend=backend) as witness:
        assert [claim(witness.address, BACKUP, pair) for pair in pairs] == [False] * 4
        assert [claim(witness.address, PRIMARY, pair) for pair in pairs] == [True] * 4


def test_a_witness_refuses_the_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "users.db"
    with Endpoint() as endpoint, endpoint.attach_master("users", "sqlite", path=path) as users:
        users["ann"] = 1
    with pytest.raises(StorageFormat, match="the witness's own file"):
        Witness("127.0.0.1:0", path=path)


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


def test_nobody_unsubscribes_the_partner(addresses: tuple[str, str]) -> None:
    one, two = addresses
    host, _, port = one.partition(":")
    with MapServer(one, partner=two, role="primary") as server, zmq.Context() as context:
        for _ in range(3):
            server._ports.hear(LISTENERS, [b"\0*"])
            server._ports.hear(LISTENERS, [b"\0"])
        for prefix in (b"*", b""):
            with context.socket(zmq.SUB) as sock:
                sock.setsockopt(zmq.SUBSCRIBE, prefix)
                sock.connect(f"tcp://{host}:{int(port) + 3}")
                assert sock.poll(int(PATIENCE_S * 1000))


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
