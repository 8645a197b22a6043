"""Links over a pair of sockets: frames, bounds, and every way in which TLS can fail."""

from __future__ import annotations

import hashlib
import shutil
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from chappe.api.keys import make_authority, make_certificate
from chappe.defaults import MIB
from chappe.errors import UsageError
from chappe.security import Check, Security, Tls
from chappe.transports.tcp import LinkLost, TcpLink
from chappe.transports.tls import Contexts, contexts, key_of

FRAME_MAX = 1 << 20


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


class End:
    """One end: a link, and what is to be sent through it."""

    def __init__(self, sock: socket.socket, security: Contexts | None, host: str | None) -> None:
        sock.setblocking(False)
        self.link = TcpLink(sock, 1, security, host)
        self.link.bytes_max = FRAME_MAX
        self.frames: list[bytes] = []
        self.waiting: list[bytes] = []
        self.lost = ""

    def step(self) -> bool:
        """Send and receive; whether anything happened."""
        if self.lost:
            return False
        try:
            self.link.send(self._take)
            got = self.link.receive()
            while found := self.link.frames(1000, MIB):
                self.frames += found
            self.link.send(self._take)
        except LinkLost as error:
            self.lost = str(error)
            self.link.close()
            return True
        return got

    def _take(self, number: int, bytes_max: int) -> list[bytes]:
        taken, self.waiting = self.waiting, []
        return taken


@contextmanager
def pair(dialling: Contexts | None, accepting: Contexts | None, host: str = "localhost") -> Iterator[tuple[End, End]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    ends = End(one, dialling, host), End(two, accepting, None)
    try:
        for end in ends:
            end.link.start()
        yield ends
    finally:
        for end in ends:
            end.link.close()


def play(ends: tuple[End, End], until: Callable[[], bool]) -> None:
    """Drive both ends until ``until``, or until both have nothing more to say."""
    for _ in range(10_000):
        if until() or all(end.lost for end in ends):
            return
        for end in ends:
            end.step()
    raise AssertionError("nothing happens any more")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("keys")
    make_authority(home)
    make_certificate(home, "one")
    make_certificate(home, "two")
    make_certificate(home, "expired", days=-1)
    make_certificate(home, "elsewhere", hosts=["sensor.example.org"])
    make_certificate(home, "named", hosts=[], id=UUID(int=7))
    make_certificate(home, "encrypted", passphrase="open sesame")
    return home


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("foreign")
    make_authority(home)
    make_certificate(home, "stranger")
    return home


def tls(home: Path, name: str, check: Check = "host") -> Contexts:
    found = contexts(Tls.of(home, name, check=check))
    assert found is not None
    return found


def unchecked(home: Path, name: str, authority: Path | None = None) -> Contexts:
    """As ``tls``, without the look at the own certificate: what a faulty peer would use."""
    from chappe.security import authority_file, certificate_file, key_file
    from chappe.transports.tls import _authenticated

    made = Tls(certificate_file(home, name), key_file(home, name), authority_file(authority or home))
    return Contexts(_authenticated(made, True), _authenticated(made, False), made.check)


@pytest.mark.parametrize("kind", ["plain", "anonymous", "tls"])
def test_frames_arrive_both_ways_as_they_were(kind: str, keys: Path) -> None:
    security: Security = Tls.of(keys, "one") if kind == "tls" else kind  # type: ignore[assignment]
    with pair(contexts(security), contexts(security)) as ends:
        sent = [[bytes([side]) * size for size in (0, 1, 37, 100_000, 900_000, 5)] for side in (1, 2)]
        for end, bodies in zip(ends, sent, strict=True):
            end.waiting = [framed(body) for body in bodies]
        play(ends, lambda: all(len(end.frames) == 6 for end in ends))
        assert (ends[0].frames, ends[1].frames) == (sent[1], sent[0])


def test_a_peer_that_sends_one_byte_at_a_time_is_understood() -> None:
    with pair(None, None) as ends:
        for byte in framed(b"hello", b"", b"world"):
            ends[0].waiting = [bytes([byte])]
            ends[0].step()
            ends[1].step()
        play(ends, lambda: len(ends[1].frames) == 3)
        assert ends[1].frames == [b"hello", b"", b"world"]


def test_a_length_beyond_the_bound_is_refused_before_anything_of_it_is_kept() -> None:
    with pair(None, None) as ends:
        ends[0].waiting = [framed(b"fine"), struct.pack(">I", FRAME_MAX + 1)]
        play(ends, lambda: bool(ends[1].lost))
        assert ends[1].lost == f"the peer sent a message of {FRAME_MAX + 1} bytes, at most {FRAME_MAX} are taken"


def test_frames_can_be_taken_one_by_one() -> None:
    with pair(None, None) as ends:
        link = ends[1].link
        ends[0].waiting = [framed(b"a", b"b", b"c")]
        ends[0].step()
        while not link.receive():
            pass
        assert [link.frames(count, MIB) for count in (1, 1, 1000, 1)] == [[b"a"], [b"b"], [b"c"], []]


def test_frames_are_taken_until_there_are_enough_bytes() -> None:
    with pair(None, None) as ends:
        link = ends[1].link
        ends[0].waiting = [framed(b"long", b"a", b"b", b"c")]
        ends[0].step()
        while not link.receive():
            pass
        assert [link.frames(1000, 6) for _ in range(4)] == [[b"long"], [b"a", b"b"], [b"c"], []]


def test_a_frame_is_measured_by_the_bound_that_holds_when_it_is_taken() -> None:
    with pair(None, None) as ends:
        link = ends[1].link
        link.bytes_max = 10
        large = bytes(FRAME_MAX)
        ends[0].waiting = [framed(b"last one", large)]
        found: list[bytes] = []
        while not found:
            ends[0].step()
            link.receive()
            found = link.frames(1, MIB)
        assert found == [b"last one"]
        link.bytes_max = FRAME_MAX  # as that one allows
        while not (found := link.frames(1, MIB)):
            ends[0].step()
            link.receive()
        assert found == [large]


def test_what_waits_behind_taken_frames_is_still_bounded() -> None:
    with pair(None, None) as ends:
        link = ends[1].link
        ends[0].waiting = [framed(b"fine"), struct.pack(">I", FRAME_MAX + 1)]
        ends[0].step()
        while link.unfinished < 12:
            link.receive()
        assert link.frames(1, MIB) == [b"fine"]
        assert link.more
        with pytest.raises(LinkLost, match="at most"):
            link.frames(1, MIB)


def test_a_socket_that_takes_no_more_says_so_and_goes_on_later() -> None:
    with pair(None, None) as ends:
        bodies = [bytes([number]) * 500_000 for number in range(60)]
        ends[0].waiting = [framed(*bodies)]
        assert not ends[0].link.send(ends[0]._take)
        play(ends, lambda: len(ends[1].frames) == 60)
        assert ends[1].frames == bodies


@pytest.mark.parametrize(
    ("dialling", "accepting", "sentence"),
    [
        ("plain", "tls", "the peer does not"),
        ("tls", "plain", "the peer speaks TLS and we do not"),
        ("anonymous", "plain", "the peer speaks TLS and we do not"),
        ("anonymous", "tls", "nothing in common"),
        ("tls", "anonymous", "nothing in common"),
    ],
)
def test_ends_of_different_security_say_what_is_wrong(dialling: str, accepting: str, sentence: str, keys: Path) -> None:
    def made(kind: str) -> Contexts | None:
        return tls(keys, "one") if kind == "tls" else contexts(kind)  # type: ignore[arg-type]

    with pair(made(dialling), made(accepting)) as ends:
        for end in ends:
            end.waiting = [framed(b"\x07ZEEK")]
        play(ends, lambda: all(end.lost for end in ends))
        assert sentence in ends[0].lost + ends[1].lost
        assert all("give both ends the same security" in end.lost or "closed" in end.lost for end in ends)
        assert not ends[0].frames
        assert not ends[1].frames


def lost_of(dialling: Contexts, accepting: Contexts, host: str = "localhost") -> tuple[str, str]:
    with pair(dialling, accepting, host) as ends:
        ends[0].waiting = [framed(b"secret")]
        ends[1].waiting = [framed(b"secret")]
        play(ends, lambda: False)
        assert ends[1].frames == []
        return ends[0].lost, ends[1].lost


def test_a_certificate_of_another_authority_is_refused_in_both_roles(keys: Path, foreign: Path) -> None:
    ours, theirs = tls(keys, "one"), unchecked(foreign, "stranger", keys)
    dialler, acceptor = lost_of(ours, unchecked(foreign, "stranger"))
    assert "the certificate is not of our authority" in dialler
    assert "it trusts another authority" in acceptor
    dialler, acceptor = lost_of(theirs, ours)
    assert "it trusts another authority" in dialler
    assert "the certificate is not of our authority" in acceptor


def test_an_expired_certificate_is_refused_in_both_roles(keys: Path) -> None:
    ours = tls(keys, "one")
    dialler, acceptor = lost_of(ours, unchecked(keys, "expired"))
    assert "the certificate has expired: make a new one with `chappe keys renew`" in dialler
    assert "it has expired" in acceptor
    dialler, acceptor = lost_of(unchecked(keys, "expired"), ours)
    assert "it has expired" in dialler
    assert "the certificate has expired" in acceptor


def test_the_host_that_was_dialled_is_checked_unless_that_is_given_up(keys: Path) -> None:
    dialler, _ = lost_of(tls(keys, "one"), tls(keys, "elsewhere"))
    assert "Hostname mismatch" in dialler
    assert "dial a host that it names" in dialler
    with pair(tls(keys, "one", "authority"), tls(keys, "elsewhere")) as ends:
        ends[0].waiting = [framed(b"fine")]
        play(ends, lambda: bool(ends[1].frames))


def test_an_address_is_checked_as_well_as_a_name(keys: Path) -> None:
    dialler, _ = lost_of(tls(keys, "one"), tls(keys, "two"), "127.0.0.2")
    assert "IP address mismatch" in dialler


def test_a_certificate_names_the_only_id_that_its_owner_may_state(keys: Path) -> None:
    with pair(tls(keys, "named", "id"), tls(keys, "named", "id"), "anywhere") as ends:
        for end in ends:
            end.waiting = [framed(b"hello")]
        play(ends, lambda: all(end.frames for end in ends))
        for end in ends:
            assert end.link.named == {UUID(int=7).bytes}
            assert end.link.key is not None
    with pair(tls(keys, "one", "authority"), tls(keys, "named", "id")) as ends:
        play(ends, lambda: bool(ends[1].lost))
        assert "names no endpoint id" in ends[1].lost


def key_seen(theirs: Contexts, ours: Contexts) -> bytes | None:
    """What tells the key of ``theirs`` from others, as ``ours`` sees it."""
    with pair(theirs, ours) as ends:
        for end in ends:
            end.waiting = [framed(b"hello")]
        play(ends, lambda: all(end.frames for end in ends))
        return ends[1].link.key


def test_a_renewed_certificate_of_the_same_key_is_the_same_peer(
    keys: Path, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tls(keys, "one")
    raw = serialization.load_pem_private_key((keys / "one.key").read_bytes(), None)
    assert isinstance(raw, ec.EllipticCurvePrivateKey)
    for file in ("authority.pem", "authority.key"):
        shutil.copy(keys / file, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ec, "generate_private_key", lambda curve: raw)
        make_certificate(tmp_path, "renewed", hosts=["localhost", "127.0.0.1", "more.example.org"], days=10)

    seen = key_seen(tls(tmp_path, "renewed"), one)

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = raw.public_key().public_bytes(serialization.Encoding.DER, form)
    assert seen == hashlib.sha256(public).digest()[:16] == key_seen(one, one)
    assert key_seen(tls(keys, "two"), one) not in (None, seen)
    assert key_seen(anonymous := contexts("anonymous") or one, anonymous) is None


def der(tag: int, *contents: bytes) -> bytes:
    whole = b"".join(contents)
    return bytes((tag, 0x82)) + len(whole).to_bytes(2) + whole


def test_a_certificate_that_we_cannot_read_is_told_apart_as_a_whole() -> None:
    class Peer:
        def __init__(self, raw: bytes) -> None:
            self.raw = raw

        def getpeercert(self, binary_form: bool) -> bytes:
            return self.raw

    def key(raw: bytes) -> bytes | None:
        return key_of(cast("ssl.SSLObject", Peer(raw)))

    public = der(0x30, b"key")
    rest = [der(0x02, b"1"), *[der(0x30, b"x" * 200)] * 4, public]
    first, second = der(0x30, der(0x30, der(0xA0, b"2"), *rest), b"one"), der(0x30, der(0x30, *rest), b"two")
    assert key(first) == key(second) == hashlib.sha256(public).digest()[:16]
    for length in range(len(first)):
        assert key(first[:length]) == hashlib.sha256(first[:length]).digest()[:16]
    endless = first.replace(public, b"\x30\x80key\0\0")
    assert key(endless) == hashlib.sha256(endless).digest()[:16]


def test_own_ids_are_read_from_the_own_certificate(keys: Path) -> None:
    assert tls(keys, "named", "id").ids == {UUID(int=7).bytes}
    assert tls(keys, "one").ids == frozenset()


@pytest.mark.parametrize(
    ("name", "passphrase", "sentence"),
    [
        ("encrypted", None, "is encrypted: give its passphrase"),
        ("encrypted", "wrong", "the passphrase is not that of"),
        ("expired", None, "our own certificate cannot be used: the certificate has expired"),
        ("absent", None, "does not exist: `chappe keys add NAME`"),
    ],
)
def test_what_is_wrong_with_our_own_files_is_said_at_once(
    name: str, passphrase: str | None, sentence: str, keys: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        contexts(Tls.of(keys, name, passphrase=passphrase))


def test_an_encrypted_key_opens_with_its_passphrase(keys: Path) -> None:
    assert contexts(Tls.of(keys, "encrypted", passphrase="open sesame")) is not None


def test_keys_that_do_not_belong_together_are_said_at_once(keys: Path, foreign: Path, tmp_path: Path) -> None:
    one = Tls.of(keys, "one")
    with pytest.raises(UsageError, match="is not the key of"):
        contexts(Tls(one.certificate, Tls.of(keys, "two").key, one.authority))
    with pytest.raises(UsageError, match="not of our authority"):
        contexts(Tls(one.certificate, one.key, Tls.of(foreign, "x").authority))
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(UsageError, match="PEM form"):
        contexts(Tls(tmp_path / "junk", one.key, one.authority))
    with pytest.raises(UsageError, match="certificate of an authority in PEM form"):
        contexts(Tls(one.certificate, one.key, tmp_path / "junk"))


def test_a_peer_that_just_closes_during_the_handshake_is_told_apart(keys: Path) -> None:
    with pair(tls(keys, "one"), None) as ends:
        ends[1].link.close()
        ends[1].lost = "closed"
        play(ends, lambda: bool(ends[0].lost))
        assert ends[0].lost.startswith("the peer closed the connection during the TLS handshake") or (
            "connection broke" in ends[0].lost
        )
