"""Shared maps with keys: who follows what, who writes what, who is the partner and the witness, and who is nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from tests.ports import free_address
from tests.waiting import PATIENCE_S, until
from zmq.utils import z85

from chappe import Keys, MapServer, SharedMap, Witness
from chappe.api import permissions
from chappe.errors import NoMaster, NotPermitted, UsageError
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say
from chappe.kv.chp.events import MapDenied
from chappe.permissions.text import with_line
from chappe.storage import key_files
from chappe.storage.key_files import curve_keys
from chappe.system import time

RULES = """
[[rules]]
deny = ["attach-clone", "write"]
names = ["part"]
topics = ["prices/secret/*"]

[[rules]]
allow = ["attach-clone"]
names = ["part"]
topics = ["prices/*"]

[[rules]]
deny = ["attach-clone"]
names = ["writer"]
topics = ["*"]

[[rules]]
allow = ["write"]
names = ["part"]
topics = ["prices/mine/*"]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    permissions.init(made, "hub", "server")
    change(made, lambda text: text.replace("[[rules]]", RULES + "\n[[rules]]", 1))
    for name, role in (("all", "member"), ("reader", "consumer"), ("writer", "producer"), ("part", "nothing")):
        permissions.add(made, name, role)
    return made


def change(home: Path, how: Callable[[str], str]) -> None:
    path = home / "permissions.toml"
    path.write_text(how(path.read_text()))
    permissions.sign(path)


def stale(home: Path) -> Path:
    """A copy that does not see what changes from now on."""
    copy = home.parent / "stale"
    copy.mkdir()
    for each in home.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
        (copy / each.name).chmod(each.stat().st_mode)
    return copy


@pytest.fixture
def server(home: Path) -> Iterator[MapServer]:
    with MapServer("127.0.0.1:0", name="prices", security=Keys(home / "hub")) as made:
        yield made


def join(server: MapServer, keys: Keys, subtree: str | tuple[str, ...] = "") -> SharedMap[str]:
    return SharedMap(server.address, values=str, subtree=subtree, security=keys, timeout=PATIENCE_S)


def test_who_may_reads_and_writes_and_others_are_told_why_not(server: MapServer, home: Path) -> None:
    assert server.address.startswith("hub@127.0.0.1:")
    with join(server, Keys(home / "all")) as everything, join(server, Keys(home / "reader")) as reader:
        everything["/a"] = "1"
        assert reader.wait_for("/a", "1", timeout=PATIENCE_S)
        before = server.status().refused
        with pytest.raises(NotPermitted, match="reader may not write 'prices/b': no rule allows it"):
            reader["/b"] = "2"
        with pytest.raises(NotPermitted, match="prices/c"):
            reader.set_many({"/c": "3", "/d": "4"})
        assert server.status().refused >= before + 3
        with pytest.raises(NotPermitted, match="writer may not attach-clone all topics that begin with 'prices/'"):
            join(server, Keys(home / "writer"))
        assert everything.compare_and_set("/a", "1", "2")
        assert dict(everything) == {"/a": "2"}


def test_subtrees_have_rules_of_their_own(server: MapServer, home: Path) -> None:
    with (
        join(server, Keys(home / "all")) as everything,
        join(server, Keys(home / "part"), ("/mine/", "/open/")) as part,
    ):
        everything.update({"/mine/a": "1", "/open/a": "1", "/secret/a": "1"})
        part["/mine/b"] = "2"
        until(lambda: dict(part) == {"/mine/a": "1", "/mine/b": "2", "/open/a": "1"})
        with pytest.raises(NotPermitted, match="part may not write 'prices/open/b'"):
            part["/open/b"] = "3"
        with pytest.raises(NotPermitted, match="part may not write 'prices/secret/b': the rule denies it"):
            part.step({"/mine/c": "4", "/secret/b": "4"})
        with pytest.raises(NotPermitted, match="part may not"):  # else values could be tried until one is right
            part.step({"/mine/c": "4"}, expected={"/secret/a": "1"})
        assert "/mine/c" not in everything
        with pytest.raises(NotPermitted, match="the rule denies some of these topics"):
            join(server, Keys(home / "part"))
        with pytest.raises(NotPermitted, match="prices/secret/"):
            join(server, Keys(home / "part"), "/secret/")


def test_whoever_may_no_more_follows_no_more(server: MapServer, home: Path) -> None:
    with join(server, Keys(home / "all")) as everything, join(server, Keys(home / "reader")) as reader:
        everything["/a"] = "1"
        reader.wait_for("/a", timeout=PATIENCE_S)
        deny = '[[rules]]\ndeny = ["attach-clone"]\nroles = ["consumer"]\ntopics = ["*"]\n\n'

        change(home, lambda text: text.replace("[[rules]]", deny + "[[rules]]", 1))

        until(lambda: any(isinstance(each, MapDenied) for each in reader.events()), "a refusal")
        until(lambda: everything.state == "active")
        everything["/b"] = "2"
        assert "/b" not in reader
        change(home, lambda text: text.replace(deny, ""))
        assert reader.wait_for("/b", "2", timeout=PATIENCE_S)


def test_who_has_no_keys_is_told_that_the_server_has_some(server: MapServer) -> None:
    plain = server.address.partition("@")[2]
    with SharedMap(plain, security="plain", timeout=0) as stranger:
        until(
            lambda: any("it asks for keys, and this program has none" in str(each) for each in stranger.events()),
            "what is wrong",
        )
        with pytest.raises(NoMaster, match=r"no map server answered at .*it asks for keys, and this program has none"):
            stranger.wait_ready(0.01)


# -- who is nobody ----------------------------------------------------------------------------------------------------


def unknown(home: Path) -> Keys:
    """Of another authority, which knows the server by the same key."""
    theirs = home.parent / "theirs"
    permissions.init(theirs, "hub", "server")
    permissions.add(theirs, "all", "member")
    own, wanted = (curve_keys(Keys(each / "hub")).public for each in (theirs, home))
    change(theirs, lambda text: text.replace(z85.encode(own).decode(), z85.encode(wanted).decode()))
    return Keys(theirs / "all")


def revoked(home: Path) -> Keys:
    copy = stale(home)
    permissions.revoke(home, "all")
    return Keys(copy / "all")


def expired(home: Path) -> Keys:
    copy = stale(home)
    change(home, lambda text: with_line(text, "all", "expires", datetime.now(UTC) - timedelta(days=1)))
    return Keys(copy / "all")


def added_elsewhere(home: Path) -> Keys:
    """Of the same authority, in a file that the server has not got yet."""
    copy = stale(home)
    key = home / "authority.key"
    permissions.add(copy, "late", "member") if key.exists() else None
    return Keys(copy / "late")


@pytest.mark.parametrize("who", [unknown, revoked, expired, added_elsewhere])
def test_whoever_is_nobody_is_refused_and_told(home: Path, who: Callable[[Path], Keys]) -> None:
    keys = who(home)
    with (
        MapServer("127.0.0.1:0", security=Keys(home / "hub")) as server,
        SharedMap(server.address, security=keys, timeout=0) as stranger,
    ):
        until(lambda: any("it refused us" in str(each) for each in stranger.events()), "a refusal")
        assert server.status().refused
        with pytest.raises(NoMaster, match="it refused us"):
            stranger.wait_ready(0.01)


def test_a_server_that_has_another_key_learns_nothing(home: Path) -> None:
    with MapServer("127.0.0.1:0", security=Keys(home / "all")) as liar:
        where = liar.address.replace("all@", "hub@")
        with SharedMap(where, security=Keys(home / "reader"), timeout=0) as shared:
            until(lambda: any("another key than hub has" in str(each) for each in shared.events()), "a refusal")
        with pytest.raises(UsageError, match="reader may not attach-master"):
            SharedMap(liar.address.replace("all@", "reader@"), security=Keys(home / "all"))


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_is_off_by_a_day_is_told_from_wrong_keys(
    home: Path, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off() -> datetime:
        return datetime.now(UTC) + timedelta(days=days)

    change(home, lambda text: with_line(text, "reader", "expires", datetime.now(UTC) + timedelta(hours=12)))
    monkeypatch.setattr(time, "utc_now", off)
    if days < 0:  # the authority was there long before
        monkeypatch.setattr(key_files, "time", SimpleNamespace(utc_now=lambda: datetime.now(UTC)))
        monkeypatch.setattr(
            key_files.WatchedPermissions, "holder", lambda self, key: self.permissions.holder(key, off())
        )
    if days < 0:  # before anything was signed
        with pytest.raises(UsageError, match="compare the clocks of both machines"):
            MapServer("127.0.0.1:0", security=Keys(home / "hub"))
    else:  # what ends meanwhile has ended, the rest has not
        with pytest.raises(UsageError, match="reader expired on"):
            SharedMap("hub@127.0.0.1:1", security=Keys(home / "reader"))
        MapServer("127.0.0.1:0", security=Keys(home / "hub")).close()


# -- with keys, past our own client -----------------------------------------------------------------------------------


def program(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, server: MapServer, offset: int, home: Path, who: str
) -> zmq.Socket[bytes]:
    """Nothing of ours at the other end, but ZeroMQ alone, and an identity."""
    made = context.socket(kind)
    own, hub = curve_keys(Keys(home / who)), curve_keys(Keys(home / "hub"))
    made.curve_publickey, made.curve_secretkey = z85.encode(own.public), z85.encode(own.secret)
    made.curve_serverkey = z85.encode(hub.public)
    if kind == zmq.SUB:
        made.subscribe(b"")
        made.subscribe(chp.HUGZ)
    host, _, port = server.address.partition("@")[2].partition(":")
    made.connect(f"tcp://{host}:{int(port) + offset}")
    return made


def test_nothing_goes_round_the_rules(server: MapServer, home: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with join(server, Keys(home / "all")) as shared:
            heard = program(context, zmq.SUB, server, 1, home, "writer")
            asking = program(context, zmq.DEALER, server, 0, home, "writer")
            pushing = program(context, zmq.PUSH, server, 2, home, "reader")
            assert heard.recv_multipart()[0] == chp.HUGZ
            before = server.status().refused
            asking.send_multipart(chp.icanhaz(b""))
            pushing.send_multipart(chp.encode_update(chp.Update(b"/forged", 1, bytes(16), b"", b"x", b"")))
            asking.send_multipart(say.encode(say.Hello(1, bytes(10), (b"",), b"", 0, 0)))
            asking.send_multipart(say.encode(say.Hello(2, bytes(10), (b"",), b"", 0, 0, True)))
            asking.send_multipart(say.encode(say.Steps(3, 1, (say.Step(((b"/f", b"x", 0, b""),)),))))
            answers = [say.from_server(asking.recv_multipart()) for _ in range(3)]
            assert all(isinstance(each, say.Refused) for each in answers)
            assert [each.stream for each in answers] == [1, 2, 3]
            assert "writer is not the other server" in answers[1].reason  # type: ignore[union-attr]
            until(lambda: server.status().refused >= before + 3)
            shared["/a"] = "1"
            assert {heard.recv_multipart()[0] for _ in range(3)} == {chp.HUGZ}  # no key
            assert dict(shared) == {"/a": "1"}
    finally:
        context.destroy(0)


# -- pairs ------------------------------------------------------------------------------------------------------------


def test_a_pair_and_its_witness_know_each_other_by_identity(home: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "judge"):
        permissions.add(home, name, "server")
    first, second, third = free_address(4), free_address(4), free_address()
    with ExitStack() as stack:
        stack.enter_context(Witness(third, path=tmp_path / "witness.db", security=Keys(home / "judge")))
        options = {"pair": "prices", "witness": f"judge@{third}"}
        one = MapServer(first, partner=f"two@{second}", role="primary", security=Keys(home / "one"), **options)  # type: ignore[arg-type]
        stack.callback(one.close)
        two = stack.enter_context(
            MapServer(second, partner=f"one@{first}", role="backup", security=Keys(home / "two"), **options)  # type: ignore[arg-type]
        )
        servers = (f"one@{first}", f"two@{second}")
        with SharedMap(*servers, values=str, security=Keys(home / "all"), timeout=PATIENCE_S) as shared:
            shared["/a"] = "1"
            status = one.status().pair
            assert status is not None
            until(lambda: (found := one.status().pair) is not None and found.confirms == "paired")
            shared["/b"] = "2"
            two.close()
            shared.set("/c", "3", timeout=PATIENCE_S)  # as the witness lets it go on alone
            assert dict(shared) == {"/a": "1", "/b": "2", "/c": "3"}


def test_one_who_is_not_the_partner_is_told_nothing(home: Path) -> None:
    for name in ("one", "two", "third"):
        permissions.add(home, name, "server")
    first, second = free_address(4), free_address(4)
    with (
        MapServer(first, partner=f"two@{second}", role="primary", security=Keys(home / "one")) as one,
        MapServer(second, partner=f"one@{first}", role="backup", security=Keys(home / "third")) as third,
    ):
        until(
            lambda: any("one@" in str(each) or "two" in str(each) for each in one.events()), "that another one is there"
        )
        assert third.status().active is False
        status = third.status().pair
        assert status is not None


def test_beyond_this_machine_a_choice_has_to_be_made(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"0\.0\.0\.0 is not this machine: give the map server an identity"):
        MapServer("0.0.0.0:0")
    with pytest.raises(UsageError, match="give the witness an identity"):
        Witness("0.0.0.0:0", path=tmp_path / "witness.db")
    MapServer("0.0.0.0:0", security="plain").close()
    MapServer("0.0.0.0:0", security=Keys(home / "hub")).close()
