"""Shared maps on real sockets: their face, killed servers, garbage, programs that speak only the Guide's protocol."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from tests.ports import free_address
from tests.waiting import PATIENCE_S, interrupt, until

from chappe import AsyncSharedMap, ChainConfiguration, MapChange, MapServer, SharedMap
from chappe.errors import AddressInUse, BufferFull, Closed, InvalidData, NoMaster, TimedOut, UsageError
from chappe.kv.chp.events import MapServerFound, MapServerLost

Text = SharedMap[str]


@pytest.fixture
def server() -> Iterator[MapServer]:
    with MapServer("127.0.0.1:0") as made:
        yield made


@pytest.fixture
def shared(server: MapServer) -> Iterator[Text]:
    with SharedMap(server.address, values=str, timeout=PATIENCE_S) as made:
        yield made


def test_it_is_a_mapping(shared: Text) -> None:
    shared["/a"] = "1"
    shared["/b"] = "2"
    shared.update({"/c": "3"}, d="4")
    assert dict(shared) == {"/a": "1", "/b": "2", "/c": "3", "d": "4"}
    assert sorted(shared.items()) == sorted(shared.snapshot().items())
    assert (shared.pop("/b"), shared.get("/b"), shared.get("/b", "none"), "/b" in shared) == ("2", None, "none", False)
    assert shared.setdefault("/e", "5") == "5"
    del shared["/e"]
    with pytest.raises(KeyError):
        del shared["/e"]
    with pytest.raises(KeyError):
        shared["/e"]
    assert len(shared) == 3
    shared.clear()
    assert not list(shared)
    assert shared


def test_values_are_of_the_maps_type(server: MapServer) -> None:
    class Price(msgspec.Struct):
        bid: float
        ask: float

    with (
        SharedMap[Price](server.address, values=Price) as prices,
        SharedMap[object](server.address, values="json") as any_,
    ):
        prices["/eur"] = Price(1.0, 1.1)
        assert prices["/eur"] == Price(1.0, 1.1)
        assert any_.wait_for("/eur", {"bid": 1.0, "ask": 1.1}, timeout=PATIENCE_S)
        any_["/eur"] = ["something else"]
        prices.wait_ready(PATIENCE_S)
        until(lambda: _raises(InvalidData, lambda: prices["/eur"]))


def _raises(kind: type[Exception], call: object) -> bool:
    try:
        call()  # type: ignore[operator]
    except kind:
        return True
    return False


@pytest.mark.parametrize("key", ["HUGZ", "KTHXBAI", "ICANHAZ?", "x" * 20_000, "\ud83d", 7])
def test_what_cannot_be_a_key_is_refused(shared: Text, key: str) -> None:
    with pytest.raises(UsageError):
        shared[key] = "x"


def test_what_cannot_be_a_value_is_refused(shared: Text) -> None:
    shared["/a"] = "stays"
    for value in ("", b"bytes", None):
        with pytest.raises(UsageError):
            shared.set("/a", value)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            shared.update({"/a": value})
        with pytest.raises(UsageError):
            shared.set_many([("/a", value)])  # type: ignore[list-item]
    with pytest.raises(UsageError):
        shared.set("/a", "x", ttl=-1)
    with pytest.raises(UsageError):
        shared.set("/a", "x", properties={"a\nb": "c"})
    assert dict(shared) == {"/a": "stays"}


def test_properties_travel_with_a_key(shared: Text) -> None:
    shared.set("/a", "x", properties={"owner": "me", "note": "a=b"}, ttl=100)
    assert shared.properties("/a") == {"owner": "me", "note": "a=b"}


def test_a_key_that_is_no_text_is_escaped(server: MapServer, shared: Text) -> None:
    shared["/\udcff"] = "x"
    with SharedMap(server.address) as other:
        assert other["/\udcff"] == b"x"
        assert list(other) == ["/\udcff"]
        assert "/\udcff" in other


def test_a_subtree_is_all_that_a_map_has(server: MapServer, shared: Text) -> None:
    with SharedMap(server.address, subtree="/a/", values=str) as part:
        shared.update({"/a/1": "x", "/b/1": "y", "/a/2": "z"})
        part.wait_for("/a/2", timeout=PATIENCE_S)
        assert dict(part) == {"/a/1": "x", "/a/2": "z"}


def test_a_watch_hears_what_becomes_of_its_keys(shared: Text) -> None:
    with shared.watch(prefix="/a/") as all_, shared.watch(key="/a/2") as one:
        shared["/a/1"] = "x"
        shared["/b"] = "x"
        shared["/a/2"] = "x"
        shared["/a/1"] = "y"
        del shared["/a/1"]
        assert [all_.get(PATIENCE_S) for _ in range(4)] == [
            MapChange("insert", "/a/1", "x", None),
            MapChange("insert", "/a/2", "x", None),
            MapChange("update", "/a/1", "y", "x"),
            MapChange("erase", "/a/1", None, "y"),
        ]
        assert one.poll() == [MapChange("insert", "/a/2", "x", None)]
        assert one.get(0.0) is None


def test_a_watch_that_is_too_slow_drops_or_ends(shared: Text) -> None:
    dropping, ending = shared.watch(messages_max=2), shared.watch(messages_max=2, on_full="disconnect")
    for number in range(5):
        shared["/a"] = str(number)
    assert [each.value for each in dropping.poll()] == ["3", "4"]
    assert dropping.dropped == 3
    assert [each.value for each in ending.poll()] == ["0", "1"]
    with pytest.raises(BufferFull):
        ending.get(0.0)


def test_reading_a_key_waits_for_nobody(shared: Text) -> None:
    shared["/a"] = "1"
    found: list[object] = []

    def read() -> None:
        found.append((shared["/a"], shared.get("/b"), "/a" in shared, len(shared), shared.pending))
        found.append(shared.state)

    with shared.member.driver.lock:  # as while a large change is taken in
        thread = threading.Thread(target=read)
        thread.start()
        thread.join(PATIENCE_S)
    assert found[:1] == [("1", None, True, 1, 0)]
    assert len(found) == 2


def test_a_callback_is_called(shared: Text) -> None:
    heard: list[MapChange[str]] = []
    with shared.watch(callback=heard.append):
        shared["/a"] = "1"
        until(lambda: heard)


def test_of_all_who_compare_and_set_one_does(server: MapServer) -> None:
    maps = [SharedMap(server.address, values=str) for _ in range(4)]
    done: list[bool] = []

    def take(shared: Text, name: str) -> None:
        done.append(shared.compare_and_set("/lock", None, name))

    threads = [threading.Thread(target=take, args=(each, str(place))) for place, each in enumerate(maps)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for shared in maps:
        shared.close()
    assert sorted(done) == [False, False, False, True]


def test_several_keys_in_one_step(shared: Text) -> None:
    shared.update({"/from": "10", "/to": "0"})
    assert shared.step({"/from": "5", "/to": "5", "/note": None}, expected={"/from": "10"})
    assert not shared.step({"/from": "0", "/to": "10"}, expected={"/from": "10"})
    assert dict(shared) == {"/from": "5", "/to": "5"}


def test_what_has_a_ttl_goes_by_itself(shared: Text) -> None:
    with shared.watch(key="/a") as watch:
        shared.set("/a", "x", ttl=0.05)
        assert [watch.get(PATIENCE_S).kind for _ in range(2)] == ["insert", "erase"]  # type: ignore[union-attr]
    assert "/a" not in shared


def test_writes_that_are_not_waited_for_are_done(server: MapServer, shared: Text) -> None:
    for number in range(2000):
        shared.set(f"/{number}", "x", wait=False)
    until(lambda: not shared.pending)
    assert len(shared) == 2000
    assert server.status().keys == 2000


def test_waits_end(shared: Text) -> None:
    with pytest.raises(TimeoutError):
        shared.wait_for("/never", timeout=0.01)
    interrupt(lambda: shared.wait_for("/never"))
    shared.close()
    with pytest.raises(Closed):
        shared["/a"] = "x"
    assert dict(shared) == {}


def test_no_server_is_one_clear_error() -> None:
    with pytest.raises(NoMaster, match=r"127\.0\.0\.1:1 in time"):
        SharedMap("127.0.0.1:1", timeout=0.05)
    with SharedMap("127.0.0.1:1", timeout=0) as shared:
        assert (shared.state, shared.ready, dict(shared)) == ("connecting", False, {})
        with pytest.raises(TimedOut):
            shared.set("/a", b"x", timeout=0.05)


def test_the_ports_of_another_server_are_taken(server: MapServer) -> None:
    with pytest.raises(AddressInUse):
        MapServer(server.address)


@pytest.mark.parametrize("address", ["x:y", "a b", "host:70000", "host:65535", "a/b"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError):
        SharedMap(address)
    with pytest.raises(UsageError):
        MapServer(address)


@pytest.mark.parametrize(
    "address", ["hub@hub@127.0.0.1:5556", "@@:1", "*", "*:5556", "127.0.0.1:0", "-x", "h\u00e9:1", ","]
)
def test_where_nobody_can_be_dialled_is_one_clear_error(address: str) -> None:
    pair: dict[str, Any] = {"role": "primary", "backend": "memory"}
    makers: list[Callable[[], object]] = [
        lambda: SharedMap(address, timeout=0),
        lambda: MapServer("127.0.0.1:7001", partner=address, **pair),
        lambda: MapServer("127.0.0.1:7001", partner="127.0.0.1:8001", witness=address, **pair),
        lambda: MapServer("127.0.0.1:7001", partner="127.0.0.1:8001", link=("127.0.0.1:7004", address), **pair),
        lambda: ChainConfiguration({"a": address}),
    ]
    for make in makers:
        with pytest.raises(
            UsageError, match=r"is not an address to connect to: give HOST:PORT|a port that the others know"
        ):
            make()


def test_in_an_event_loop(server: MapServer) -> None:
    async def main() -> None:
        async with AsyncSharedMap(server.address, values=str) as shared, AsyncSharedMap(server.address) as other:
            watch = shared.watch()
            await shared.set("/a", "1")
            assert shared["/a"] == "1"
            assert await shared.compare_and_set("/a", "1", "2")
            assert await other.wait_for("/a", b"2", timeout=PATIENCE_S) == b"2"
            await shared.set_many({"/b": "1", "/c": "2"})
            await shared.delete("/b")
            found = []
            async for change in watch:
                found.append((change.kind, change.key))
                if len(found) == 5:
                    break
            assert found == [("insert", "/a"), ("update", "/a"), ("insert", "/b"), ("insert", "/c"), ("erase", "/b")]
            waiting = asyncio.ensure_future(shared.wait_for("/d"))
            await asyncio.sleep(0)
            await other.set("/d", b"x")
            assert await waiting == "x"
            assert [each.key for each in await watch.get_many(9, PATIENCE_S)] == ["/d"]
            assert (watch.available, watch.dropped) == (0, 0)
            await watch.close()

    asyncio.run(main())


# -- bad input --------------------------------------------------------------------------------------------------------


def port_of(server: MapServer) -> int:
    return int(server.address.rpartition(":")[2])


def plain(kind: int, server: MapServer, offset: int) -> zmq.Socket[bytes]:
    sock: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
    sock.connect(f"tcp://127.0.0.1:{port_of(server) + offset}")
    return sock


def test_garbage_on_every_port_harms_nobody(server: MapServer, shared: Text) -> None:
    asking, writing = plain(zmq.DEALER, server, 0), plain(zmq.PUSH, server, 2)
    for frames in (
        [b""],
        [b"ICANHAZ?"],
        [b"x"] * 9,
        [b"CHAPPE", b"\xff\xff"],
        [b"k", b"1", b"2", b"3", b"4"],
        [b"\0" * 99_999],
    ):
        asking.send_multipart(frames)
        writing.send_multipart(frames)
    until(lambda: server.status().malformed == 12)
    shared["/a"] = "still here"
    assert shared["/a"] == "still here"
    asking.close()
    writing.close()


def test_who_asks_as_the_original_gets_all_of_it(server: MapServer, shared: Text) -> None:
    shared.set_many({f"/k/{number}": "x" for number in range(5000)})
    asking = plain(zmq.DEALER, server, 0)
    asking.send_multipart([b"ICANHAZ?", b"/k/"])
    found = []
    while (frames := asking.recv_multipart())[0] != b"KTHXBAI":
        found.append(frames[0])
    asking.close()

    assert len(set(found)) == 5000
    assert int.from_bytes(frames[1], "big") == server.status().sequence


def test_who_writes_and_hears_as_the_original_takes_part(server: MapServer, shared: Text) -> None:
    hearing, writing = plain(zmq.SUB, server, 1), plain(zmq.PUSH, server, 2)
    for prefix in (b"/a/", b"HUGZ"):
        hearing.setsockopt(zmq.SUBSCRIBE, prefix)
    assert hearing.recv_multipart()[0] == b"HUGZ"
    writing.send_multipart([b"/a/1", bytes(8), b"u" * 16, b"ttl=60\nowner=me\n", b"value"])
    assert shared.wait_for("/a/1", timeout=PATIENCE_S) == "value"
    assert shared.properties("/a/1") == {"owner": "me"}
    shared["/a/2"] = "other"
    heard: list[tuple[bytes, ...]] = []
    while len(heard) < 2:
        frames = hearing.recv_multipart()
        if frames[0] != b"HUGZ":
            heard.append((frames[0], frames[2], frames[4]) if not heard else (frames[0], frames[4]))
    hearing.close()
    writing.close()

    assert heard == [(b"/a/1", b"u" * 16, b"value"), (b"/a/2", b"other")]


# -- servers that die -------------------------------------------------------------------------------------------------

SERVE = """
import sys
from chappe import MapServer
with MapServer(sys.argv[1], backend=sys.argv[2], path=sys.argv[3] or None) as server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


def serve(address: str | None = None, backend: str = "memory", path: object = "") -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, address or free_address(3), backend, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the server did not start: see what it wrote"
    return process, line.strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.process
@pytest.mark.parametrize("backend", ["sqlite", "rocksdb"])
def test_what_was_confirmed_survives_a_kill(tmp_path: Path, backend: str) -> None:
    process, address = serve(backend=backend, path=tmp_path / "map")
    with SharedMap(address, values=str, timeout=PATIENCE_S) as shared:
        shared.update({f"/{number}": "x" for number in range(200)})
        for number in range(0, 200, 2):
            shared.delete(f"/{number}", wait=False)
        shared.set("/last", "x", timeout=PATIENCE_S)
        end(process)
        assert len(shared) == 101
        shared.set("/unconfirmed", "y", wait=False)
        process, _ = serve(address, backend, tmp_path / "map")
        shared.set("/after", "z", timeout=PATIENCE_S)
        assert {each for each in shared if not each[1:].isdigit()} == {"/last", "/unconfirmed", "/after"}
        assert len(shared) == 103
        assert {type(each) for each in shared.events()} <= {MapServerFound, MapServerLost}
    end(process)


@pytest.mark.process
def test_a_server_that_stands_still_is_lost_and_found_again() -> None:
    process, address = serve()
    with SharedMap(address, values=str, timeout=PATIENCE_S) as shared:
        shared["/a"] = "1"
        process.send_signal(signal.SIGSTOP)
        until(lambda: shared.state != "active")
        assert dict(shared) == {"/a": "1"}
        shared.set("/b", "2", wait=False)
        process.send_signal(signal.SIGCONT)
        until(lambda: not shared.pending)
        assert dict(shared) == {"/a": "1", "/b": "2"}
        until(lambda: shared.state == "active")
    end(process)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(Exception, match="map"):
        MapServer("127.0.0.1:0", backend="sqlite", path=path)
    with pytest.raises(UsageError):
        MapServer("127.0.0.1:0", backend="sqlite")
