"""Sockets with keys: who is let in, who is not, and what both sides learn of it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zmq
import zmq.auth
from tests.waiting import PATIENCE_S, Clock, until
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from chappe.api import permissions
from chappe.errors import UsageError
from chappe.log.events import ConnectionRefused
from chappe.permissions.text import with_line
from chappe.security import Keys
from chappe.storage.key_files import curve_keys
from chappe.transports.addresses import TowerAddress, bind
from chappe.transports.dialled import Dialled
from chappe.transports.gate import MARK, Gate, check_listening, gate_of, keys_of, user_of
from chappe.transports.zeromq import open_socket


def gate(keys: Keys) -> Gate:
    found = gate_of(keys)
    assert found is not None
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    permissions.init(tmp_path / "ours", "hub", "server")
    permissions.add(tmp_path / "ours", "sensor", "producer")
    return tmp_path / "ours"


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Server:
    """A socket that hears subscriptions, each from an identity."""

    def __init__(self, keys: Keys, sockets: ExitStack, name: str = "hub") -> None:
        self.gate = gate(keys)
        self.sock = open_socket(zmq.XPUB, self.gate)
        sockets.callback(self.sock.close)
        self.where = f"tcp://127.0.0.1:{bind(self.sock, '127.0.0.1', gate=self.gate)}"
        self.endpoint = f"{self.where}#{name}"

    def heard(self) -> str:
        """Whose subscription came."""
        until(lambda: self.sock.poll(0), "a subscription")
        return str(self.sock.recv_multipart(copy=False)[0].get("User-Id"))

    def nobody(self) -> bool:
        return not self.sock.poll(0)


class Client:
    """A socket that subscribes, and what it was told."""

    def __init__(self, endpoint: str, keys: Keys | None, sockets: ExitStack, verb: str = "") -> None:
        self.events: list[object] = []
        found = None if keys is None else gate(keys)
        self.sock = open_socket(zmq.SUB, found)
        sockets.callback(self.sock.close)
        self.sock.setsockopt(zmq.SUBSCRIBE, b"news")
        self.dialled = Dialled(self.sock, found, self.events.append, verb)
        self.dialled.connect(endpoint)

    def refusal(self) -> str:
        def told() -> bool:
            self.dialled.look()
            return bool(self.events)

        until(told, "a refusal")
        assert isinstance(self.events[0], ConnectionRefused)
        return self.events[0].reason


def test_an_identity_of_the_permissions_is_let_in_and_known_by_name(home: Path, sockets: ExitStack) -> None:
    server = Server(Keys(home / "hub"), sockets)

    client = Client(server.endpoint, Keys(home / "sensor"), sockets)

    assert server.heard() == "sensor"
    server.sock.send(b"news of today")
    assert client.sock.recv() == b"news of today"


def stale(home: Path) -> Path:
    """A copy that does not see what changes from now on."""
    copy = home.parent / "elsewhere"
    copy.mkdir()
    for each in home.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
        (copy / each.name).chmod(each.stat().st_mode)
    return copy


def revoked(home: Path) -> Keys:
    permissions.add(home, "other", "producer")
    copy = stale(home)
    permissions.revoke(home, "other")
    return Keys(copy / "other")


def unknown(home: Path) -> Keys:
    """One that another authority made, which knows the server by the same key."""
    permissions.init(home.parent / "theirs", "hub", "server")
    permissions.add(home.parent / "theirs", "sensor", "producer")
    theirs = home.parent / "theirs" / "permissions.toml"
    own, wanted = (curve_keys(Keys(each / "hub")).public for each in (home.parent / "theirs", home))
    theirs.write_bytes(theirs.read_bytes().replace(z85.encode(own), z85.encode(wanted)))
    permissions.sign(theirs)
    return Keys(home.parent / "theirs" / "sensor")


@pytest.mark.parametrize("who", [revoked, unknown])
def test_whoever_is_not_in_the_permissions_is_refused_and_told(
    who: Callable[[Path], Keys], home: Path, sockets: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    keys = who(home)
    server = Server(Keys(home / "hub"), sockets)
    server.gate.look()
    before = server.gate.refused

    client = Client(server.endpoint, keys, sockets)

    assert "it refused us: its permissions do not have" in client.refusal()
    assert server.gate.refused > before
    assert server.nobody()
    assert "refused 127.0.0.1: " in caplog.text


def test_a_server_with_another_key_than_it_should_have_learns_nothing(home: Path, sockets: ExitStack) -> None:
    server = Server(Keys(home / "sensor"), sockets, name="hub")  # it says so

    client = Client(server.endpoint, Keys(home / "sensor"), sockets)

    assert "another key than hub has here" in client.refusal()
    assert server.nobody()


def test_a_plain_client_is_refused_and_counted(home: Path, sockets: ExitStack) -> None:
    server = Server(Keys(home / "hub"), sockets)
    plain = open_socket(zmq.SUB)
    sockets.callback(plain.close)
    plain.setsockopt(zmq.SUBSCRIBE, b"news")

    def refused() -> bool:  # each is not: where the client is the first to see it, and ends, nothing is told
        plain.connect(server.where)
        plain.disconnect(server.where)
        return bool(server.gate.refused)

    until(refused, "a refusal that was counted")
    assert server.nobody()
    client = Client(server.endpoint, None, sockets)
    assert "give us an identity as well, as it has hub" in client.refusal()


def test_a_plain_server_is_told_from_one_that_has_keys(home: Path, sockets: ExitStack) -> None:
    plain = open_socket(zmq.XPUB)
    sockets.callback(plain.close)
    port = bind(plain, "127.0.0.1")

    client = Client(f"tcp://127.0.0.1:{port}#hub", Keys(home / "sensor"), sockets)

    assert "has no keys" in client.refusal() or "the other has none" in client.refusal()
    nameless = Client(f"tcp://127.0.0.1:{port}", Keys(home / "sensor"), sockets)
    assert "does not say who it is" in nameless.refusal()
    assert not plain.poll(0)


def test_without_a_handler_nobody_is_let_in(home: Path, sockets: ExitStack) -> None:
    """Where ZeroMQ has nobody to ask, which usually means that everybody may come in."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets.callback(context.destroy, 0)
    server = context.socket(zmq.XPUB)
    gate(Keys(home / "hub")).listen(server)
    port = server.bind_to_random_port("tcp://127.0.0.1")

    client = Client(f"tcp://127.0.0.1:{port}#hub", Keys(home / "sensor"), sockets)

    assert "ended the handshake" in client.refusal()
    assert not server.poll(0)


def test_who_is_not_allowed_to_serve_is_not_dialled(home: Path, sockets: ExitStack) -> None:
    server = Server(Keys(home / "sensor"), sockets, name="sensor")

    client = Client(server.endpoint, Keys(home / "hub"), sockets, verb="store")

    assert "sensor at" in client.refusal()
    assert "it may not store" in client.refusal()
    assert server.nobody()


def test_whoever_is_added_later_comes_in_without_a_restart(home: Path, sockets: ExitStack) -> None:
    server = Server(Keys(home / "hub"), sockets)
    permissions.add(home, "late", "consumer")
    copy = stale(home)
    permissions.revoke(home, "late")
    server.gate.look()
    client = Client(server.endpoint, Keys(copy / "late"), sockets)
    assert "it refused us" in client.refusal()

    text = (home / "permissions.toml").read_text()
    line = next(each for each in text.splitlines() if each.startswith("revoked"))
    (home / "permissions.toml").write_text(text.replace(line + "\n", ""))
    permissions.sign(home / "permissions.toml")

    def here() -> bool:
        client.dialled.look()
        return bool(server.sock.poll(0))

    until(here, "somebody who may come in")
    assert server.heard() == "late"


def test_whoever_is_revoked_is_cut_off_and_the_others_are_back(home: Path, sockets: ExitStack) -> None:
    permissions.add(home, "other", "consumer")
    server = Server(Keys(home / "hub"), sockets)
    client = Client(server.endpoint, Keys(home / "sensor"), sockets)
    assert server.heard() == "sensor"
    gone = Client(server.endpoint, Keys(stale(home) / "other"), sockets)

    def subscription() -> tuple[bytes, str]:
        until(lambda: client.sock.poll(0) or server.sock.poll(0), "news of a subscription")  # who subscribes is at work
        (frame,) = server.sock.recv_multipart(copy=False)
        try:
            return frame.bytes[:1], str(frame.get("User-Id"))
        except zmq.ZMQError:
            return frame.bytes[:1], ""

    server.sock.setsockopt(zmq.XPUB_VERBOSE, 1)
    until(lambda: len(server.gate._admitted) == 2, "the other one")

    permissions.revoke(home, "other")

    assert "it refused us" in gone.refusal()
    until(lambda: subscription() == (b"\1", "sensor"), "who has done nothing")


def test_permissions_are_looked_at_though_a_clock_was_put_forward_and_back(
    home: Path, sockets: ExitStack, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(Keys(home / "hub"), sockets)
    looks: list[float] = []
    monkeypatch.setattr(server.gate, "look", lambda: looks.append(clock.forward_s))
    clock.forward_s = 1e6
    until(lambda: 1e6 in looks)
    clock.forward_s = 0.0
    looks.clear()
    until(lambda: 0.0 in looks)


def test_whoever_expires_is_cut_off(home: Path, sockets: ExitStack) -> None:
    permissions.add(home, "short", "consumer")
    server = Server(Keys(home / "hub"), sockets)
    client = Client(server.endpoint, Keys(stale(home) / "short"), sockets)
    assert server.heard() == "short"

    path = home / "permissions.toml"
    path.write_text(with_line(path.read_text(), "short", "expires", datetime.now(UTC) + timedelta(seconds=2)))
    permissions.sign(path)

    assert "it refused us" in client.refusal()


@pytest.mark.parametrize(("days", "why"), [(-1, "compare the clocks of both"), (1, "sensor expired on")])
def test_a_clock_that_is_off_by_a_day_refuses_and_says_why(
    home: Path, sockets: ExitStack, days: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / "permissions.toml"
    path.write_text(with_line(path.read_text(), "sensor", "expires", datetime.now(UTC) + timedelta(hours=12)))
    permissions.sign(path)
    server = Server(Keys(home / "hub"), sockets)
    watched, refused = server.gate._watched, server.gate.refusals
    off = lambda key: watched.permissions.holder(key, datetime.now(UTC) + timedelta(days=days))  # noqa: E731
    monkeypatch.setattr(watched, "holder", off)
    told: list[str] = []
    monkeypatch.setattr(refused, "add_stranger", lambda count, text: told.append(text))

    client = Client(server.endpoint, Keys(stale(home) / "sensor"), sockets)  # whose clock is right

    assert "it refused us" in client.refusal()
    assert why in told[0]
    assert server.nobody()


def test_a_server_that_is_revoked_is_dialled_no_more(home: Path, sockets: ExitStack) -> None:
    permissions.add(home, "other", "producer")
    server = Server(Keys(stale(home) / "other"), sockets, name="other")  # which does not see it
    client = Client(server.endpoint, Keys(home / "sensor"), sockets)
    assert server.heard() == "sensor"

    permissions.revoke(home, "other")

    assert "is not dialled: other was revoked" in client.refusal()
    until(lambda: client.sock.poll(0) or server.sock.poll(0), "the end of a subscription")
    assert server.sock.recv() == b"\0news"


def test_a_program_of_zeromq_with_keys_comes_in_and_is_dialled(home: Path, sockets: ExitStack) -> None:
    """Nothing of ours at the other end, but ZeroMQ alone."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets.callback(context.destroy, 0)
    sensor, hub = (curve_keys(Keys(home / name)) for name in ("sensor", "hub"))
    server = Server(Keys(home / "hub"), sockets)
    theirs = context.socket(zmq.SUB)
    theirs.curve_publickey, theirs.curve_secretkey = z85.encode(sensor.public), z85.encode(sensor.secret)
    theirs.curve_serverkey = z85.encode(hub.public)
    theirs.subscribe(b"")
    theirs.connect(server.where)
    assert server.heard() == "sensor"

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    sockets.callback(authenticator.stop)
    authenticator.configure_curve(location=zmq.auth.CURVE_ALLOW_ANY)
    listening = context.socket(zmq.XPUB)
    listening.curve_server, listening.zap_domain = 1, b"any"
    listening.curve_publickey, listening.curve_secretkey = z85.encode(hub.public), z85.encode(hub.secret)
    port = listening.bind_to_random_port("tcp://127.0.0.1")
    Client(f"tcp://127.0.0.1:{port}#hub", Keys(home / "sensor"), sockets)
    until(lambda: listening.poll(0), "a subscription")


def raw(kind: str, **properties: bytes) -> bytes:
    """What a program says that speaks ZMTP 3.0 without keys: its greeting, and READY with these properties."""
    said = b"".join(
        bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value
        for name, value in {"Socket-Type": kind.encode(), **properties}.items()
    )
    ready = b"\x05READY" + said
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
    return greeting + bytes([4, len(ready)]) + ready


def test_who_names_himself_is_nobody(home: Path, sockets: ExitStack) -> None:
    """A peer may say in its READY what it likes, also what ZeroMQ calls those who were let in."""
    server = Server(Keys(home / "hub"), sockets)
    server.gate.admit_plain(server.sock)
    port = bind(server.sock, "127.0.0.1")
    Client(server.endpoint, Keys(home / "sensor"), sockets)
    until(lambda: server.sock.poll(0), "a subscription")
    (frame,) = server.sock.recv_multipart(copy=False)
    assert (frame.bytes, user_of(frame)) == (b"\1news", "sensor")
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as rogue:
        rogue.sendall(raw("SUB", **{"User-Id": b"hub", MARK: b"guess"}))
        answer = b""
        while b"XPUB" not in answer:
            answer += rogue.recv(100)
        rogue.sendall(b"\x00\x05\x01rest")
        until(lambda: server.sock.poll(0), "a subscription")
        (frame,) = server.sock.recv_multipart(copy=False)
        assert (frame.bytes, user_of(frame)) == (b"\1rest", "")


def test_one_who_is_nobody_any_more_cannot_begin(home: Path) -> None:
    permissions.revoke(home, "sensor")
    with pytest.raises(UsageError, match="sensor was revoked on"):
        gate(Keys(home / "sensor"))
    permissions.add(home, "short", "consumer", days=-1)
    with pytest.raises(UsageError, match="short expired on"):
        gate(Keys(home / "short"))
    (home / "liar.key").write_bytes((home / "hub.key").read_bytes())
    (home / "liar.key").chmod(0o600)
    with pytest.raises(UsageError, match="has the keys of hub"):
        gate(Keys(home / "liar"))


def test_who_we_are_is_told_by_a_word_or_by_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAPPE_IDENTITY", raising=False)
    assert keys_of(None) is None
    check_listening(None, "127.0.0.1", "store")
    with pytest.raises(UsageError, match="is not this machine: give the store an identity"):
        check_listening(None, "0.0.0.0", "store")
    check_listening("plain", "0.0.0.0", "store")
    monkeypatch.setenv("CHAPPE_IDENTITY", str(home / "hub"))
    monkeypatch.setenv("CHAPPE_KEY_PASSPHRASE", "secret")
    found = keys_of(None)
    assert found == Keys(str(home / "hub"), "secret")
    assert "secret" not in repr(found)
    assert keys_of("plain") is None
    check_listening(None, "0.0.0.0", "store")
    with pytest.raises(UsageError, match=r"'plain' or Keys"):
        keys_of("anonymous")  # type: ignore[arg-type]


def test_an_address_may_say_who_is_there() -> None:
    assert TowerAddress.parse("hub@10.0.0.5:6000") == TowerAddress("10.0.0.5", 6000, 6001, "hub")
    assert str(TowerAddress.parse("hub@10.0.0.5:6000")) == "hub@10.0.0.5:6000:6001"
    for wrong in ("a b@10.0.0.5", "@10.0.0.5", "a@b@c", "hub@10.0.0.5:x"):
        with pytest.raises(UsageError):
            TowerAddress.parse_many(wrong)
