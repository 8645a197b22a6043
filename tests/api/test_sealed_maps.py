"""Sealed shared maps: a server that is not of the group, and clients that are."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.api.sealed_net import make_home
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until

from chappe import Keys, MapServer, SharedMap
from chappe.api import permissions
from chappe.errors import InvalidData, NotPermitted, Sealed, UsageError
from chappe.kv.chp.events import MapWritesLost
from chappe.kv.chp.stream import Step

PLANTED = ("planted-part", "planted value", "planted property")

Join = Callable[..., SharedMap[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "keys")


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[MapServer]:
    options: Any = {"backend": "sqlite", "path": tmp_path / "data" / "map.db"}
    with MapServer("127.0.0.1:0", name="patients", security=Keys(home / "hub"), **options) as made:
        yield made


@pytest.fixture
def join(server: MapServer, home: Path) -> Join:
    def made(who: str = "ann", subtree: Any = "", at: Path = home, **options: Any) -> SharedMap[str]:
        security = Keys(at / who)
        given: Any = {"name": "patients", "timeout": PATIENCE_S} | options
        return SharedMap(server.address, values=str, subtree=subtree, security=security, **given)

    return made


@contextmanager
def tapped(patch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """All that sockets of this process send, as it is before the hop's own encryption."""
    seen: list[bytes] = []
    for name in ("send", "send_multipart"):
        real = getattr(zmq.Socket, name)

        def watched(self: Any, what: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            seen.extend(bytes(each) for each in (what if isinstance(what, list | tuple) else [what]))
            return real(self, what, *args, **kwargs)

        patch.setattr(zmq.Socket, name, watched)
    with patch.context():
        yield seen


def test_members_share_what_the_server_cannot_read(
    server: MapServer, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, value, text = PLANTED
    with tapped(monkeypatch) as seen, join("ann") as ann, join("bob") as bob:
        ann.set(f"/{part}/1", value, properties={"note": text})
        ann.update({f"/{part}/{each}": value for each in range(2, 20)})
        assert bob.wait_for(f"/{part}/19", value, timeout=PATIENCE_S) == value
        assert bob.snapshot() == ann.snapshot() == {f"/{part}/{each}": value for each in range(1, 20)}
        assert bob.properties(f"/{part}/1") == {"note": text}
        assert sorted(bob.keys()) == sorted(ann)
        assert bob.member.raw(bob.member.find(f"/{part}/1")) == (f"/{part}/1".encode(), value.encode(), {"note": text})  # type: ignore[arg-type]
        del bob[f"/{part}/2"]
        until(lambda: f"/{part}/2" not in ann)
        assert len(ann) == 18
    with join("bob") as later:
        assert later[f"/{part}/1"] == value
    files = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert len(seen) > 20
    assert files
    assert not [raw for raw in seen + files for planted in PLANTED if planted.encode() in raw]


def test_steps_watches_times_to_live_and_subtrees_work_as_ever(join: Join) -> None:
    with join("ann") as ann, join("bob", "/ward/7/") as bob, bob.watch(prefix="/ward/7/b") as watch:
        assert ann.step({"/ward/7/bed": "1", "/ward/7/chair": "1", "/ward/8/bed": "1", "/ward/77/bed": "1"})
        change = watch.get(PATIENCE_S)
        assert change is not None
        assert (change.kind, change.key, change.value, change.before) == ("insert", "/ward/7/bed", "1", None)
        assert bob.snapshot() == {"/ward/7/bed": "1", "/ward/7/chair": "1"}
        assert not ann.compare_and_set("/ward/7/bed", "2", "3")
        assert not ann.compare_and_set("/ward/7/bed", None, "3")
        assert ann.compare_and_set("/ward/7/bed", "1", "2")
        change = watch.get(PATIENCE_S)
        assert change is not None
        assert (change.kind, change.value, change.before) == ("update", "2", "1")
        assert bob.compare_and_set("/ward/7/bed", "2", None)
        change = watch.get(PATIENCE_S)
        assert change is not None
        assert (change.kind, change.value, change.before) == ("erase", None, "2")
        assert ann.step({"/ward/7/bed": "4"}, expected={"/ward/7/bed": None, "/ward/8/bed": "1"})
        ann.set("/ward/7/gone", "1", ttl=0.05)
        until(lambda: "/ward/7/gone" not in ann)
    with join("bob", "/ward/7") as whole:  # a subtree is made of whole parts
        assert set(whole) == {"/ward/7/bed", "/ward/7/chair"}


def test_of_all_who_try_one_sets_a_value(join: Join) -> None:
    with join("ann") as ann, join("bob") as bob:
        ann["count"] = "0"
        bob.wait_for("count", timeout=PATIENCE_S)
        done = 0
        for _ in range(20):
            for each in (ann, bob):
                now = each["count"]
                done += each.compare_and_set("count", now, str(int(now) + 1))
        until(lambda: ann["count"] == bob["count"] == str(done))


def test_who_is_not_of_the_group_is_told(join: Join, home: Path) -> None:
    with pytest.raises(Sealed, match="map 'patients' is sealed, and cannot be read: eve is not of ward"):
        join("eve")


def test_who_does_not_say_which_map_it_is_is_refused(join: Join, server: MapServer) -> None:
    with pytest.raises(NotPermitted, match="the map is sealed: say its name when it is opened"):
        join("ann", name="")
    assert server.status().refused > 0


def test_what_is_not_sealed_is_not_taken(join: Join) -> None:
    with join("ann") as ann, join("bob") as bob:
        plain = Step(((b"/plain", b"value", 0, b""),))
        with pytest.raises(NotPermitted, match="the map is sealed, and the value is not"):
            bob._run(bob.member.writing(plain, True, PATIENCE_S))
        assert ann.snapshot() == {}


def test_keys_that_are_to_be_sealed_go_into_no_plain_map(home: Path) -> None:
    with MapServer("127.0.0.1:0", security=Keys(home / "hub")) as server:
        options: Any = {"values": str, "security": Keys(home / "ann"), "timeout": PATIENCE_S}
        with SharedMap(server.address, **options) as plain:
            plain["public/1"] = "1"
            with pytest.raises(
                Sealed, match="key 'patients/1' is sealed for ward, and nothing was sent: a map is seal"
            ):
                plain["patients/1"] = "1"
            assert plain.snapshot() == {"public/1": "1"}


def test_what_a_server_makes_of_it_is_refused(join: Join, home: Path) -> None:
    """It puts the value of one key under another, changes one, and makes up one."""
    with join("ann") as ann, join("bob") as bob:
        ann.update({"/a": "1", "/b": "2", "/c": "3"})
        bob.wait_for("/c", timeout=PATIENCE_S)
        sealing = bob.member.sealing
        assert sealing is not None
        entries = {key: bob.member.find(key) for key in ("/a", "/b", "/c")}
        assert all(entries.values())
        wires = {key: sealing.key(key.encode()) for key in entries}
        bodies: dict[str, Any] = {key: each.value[0] for key, each in entries.items() if each is not None}  # type: ignore[index]
        with pytest.raises(Sealed, match="not as ann has signed them"):
            sealing.open(wires["/a"], bodies["/b"])
        changed = bodies["/a"][:-1] + bytes([bodies["/a"][-1] ^ 1])
        with pytest.raises(Sealed, match="not as ann has signed them"):
            sealing.open(wires["/a"], changed)
        assert sealing.plain_key(b"/made-up") is None
        assert sealing.plain_key(wires["/a"] + b"A") is None
        assert sealing.plain_key(wires["/a"]) == b"/a"
        with bob.watch() as watch:
            bob._run(bob.member.writing(Step(((wires["/a"], bodies["/b"], 0, b""),)), True, PATIENCE_S))
            with pytest.raises(Sealed):
                bob["/a"]
            with pytest.raises(InvalidData, match="'/a': a value of map 'patients' cannot be opened"):
                watch.get(PATIENCE_S)
            bob._run(bob.member.writing(Step(((b"/made-up", bodies["/b"], 0, b""),)), True, PATIENCE_S))
            assert sorted(bob.keys()) == ["/a", "/b", "/c"]
            bob["/a"] = "4"  # anybody can mend it
            change = watch.get(PATIENCE_S)
            assert change is not None
            assert (change.key, change.value, change.before) == ("/a", "4", None)


def test_who_joins_reads_what_is_set_later_and_what_it_was_given(join: Join, home: Path) -> None:
    with join("ann") as ann:
        ann.set("/old", "1", timeout=PATIENCE_S)
        permissions.add(home, "cat", "member")
        at = home.parent / "copy"
        shutil.copytree(home, at)
        sealing = ann.member.sealing
        assert sealing is not None

        def new_keys() -> bool:
            ann.set("/new", "1", timeout=PATIENCE_S)
            ring = sealing._held.ring("ward")
            return ring is not None and ring.keys.newest.number == 2

        until(new_keys)
        ann.set("/new", "2", timeout=PATIENCE_S)
        with join("cat", at=at) as cat:
            assert sorted(cat.keys()) == ["/new", "/old"]  # names last as long as the group
            assert cat["/new"] == "2"
            with pytest.raises(Sealed, match="whose key was not given to us"):
                cat["/old"]
            ann.set("/old", "3", timeout=PATIENCE_S)

            def read() -> bool:
                try:
                    return cat["/old"] == "3"
                except Sealed:
                    return False

            until(read)


def test_keys_from_before_there_were_sealed_maps_have_to_be_rotated(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chappe.sealing.ring import Ring

    monkeypatch.setattr(Ring, "lasting", None)
    with pytest.raises(Sealed, match="`chappe keys rotate` makes what they need"):
        join("ann")


def test_lost_writes_are_told_by_the_keys_that_their_author_wrote(home: Path) -> None:
    address = free_address(3)
    options: Any = {"name": "patients", "security": Keys(home / "hub")}
    with ExitStack() as stack:
        with MapServer(address, **options):
            given: Any = {"name": "patients", "security": Keys(home / "ann"), "timeout": PATIENCE_S}
            ann = stack.enter_context(SharedMap(f"hub@{address}", values=str, **given))
            ann.set("/ward/bed", "1", timeout=PATIENCE_S)
        stack.enter_context(MapServer(address, **options))  # it has kept nothing
        lost: list[object] = []

        def told() -> bool:
            lost.extend(each for each in ann.events() if isinstance(each, MapWritesLost))
            return bool(lost)

        until(told)
        assert lost == [MapWritesLost(f"hub@{address}", 1, ("/ward/bed",))]


def test_a_sealed_map_is_not_bridged(join: Join) -> None:
    from chappe.api.kv.map_store import MapStore

    with join("ann") as ann, pytest.raises(UsageError, match="a sealed map cannot be bridged"):
        MapStore(ann)


def test_a_pattern_for_some_keys_of_a_map_does_not_seal_it(home: Path) -> None:
    path = home / "permissions.toml"
    assert "patients/*" in path.read_text()
    path.write_text(path.read_text().replace('"patients/*"', '"patients/secret/*"'))
    permissions.sign(path)
    with MapServer("127.0.0.1:0", name="patients", security=Keys(home / "hub")) as server:
        options: Any = {"values": str, "name": "patients", "security": Keys(home / "ann"), "timeout": PATIENCE_S}
        with SharedMap(server.address, **options) as found:
            found["/open"] = "1"
            with pytest.raises(Sealed):
                found["/secret/1"] = "1"
