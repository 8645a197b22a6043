"""The parts of the commands of the mesh that need no process."""

from __future__ import annotations

from pathlib import Path

import pytest

from chappe.cli import mesh, node, ping, values
from chappe.cli.units import address
from chappe.data.binary import encode
from chappe.data.scalars import Count, Port
from chappe.data.zeek import Batch, Event
from chappe.errors import ConfigError, InvalidData, PeeringError, UsageError
from chappe.mesh.events import PeerLost
from chappe.security import Tls


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("localhost:80", ("localhost", 80)),
        ("localhost", ("localhost", 9999)),
        (":80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 9999)),
        ("::1", ("::1", 9999)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
    ],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert address(text) == found
    assert address(mesh.shown(found)) == found


@pytest.mark.parametrize("text", ["localhost:x", "localhost:", "localhost:70000", "tcp://localhost:80", "[::1]:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        address(text)


def test_a_peer_that_says_goodbye_is_not_lost() -> None:
    teller = mesh.PeerNotices()
    for left in (True, False, True):
        teller(PeerLost(b"p" * 16, ("127.0.0.1", 1), "why", left=left))
    assert teller.lost == 1


def test_peers_that_cannot_be_reached_are_named_once_until_some_peer_comes_or_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = mesh.PeerNotices(come_and_go=True)
    for _ in range(3):
        teller(PeeringError("no :1"))
        teller(PeeringError("no :2"))
    teller(PeerLost(b"p" * 16, ("127.0.0.1", 1), "why", left=True))
    teller(PeeringError("no :1"))
    said = capsys.readouterr().err.splitlines()
    assert [line[:14] for line in said if "no :" in line] == ["chappe: no :1;", "chappe: no :2;", "chappe: no :1;"]


def test_security_is_one_of_three_and_plain_only_within_this_machine_by_default() -> None:
    assert mesh.Trust().security() is None
    assert mesh.Trust(anonymous=True).security() == "anonymous"
    assert mesh.Trust((Path("keys"), "one")).security() == Tls.of("keys", "one")
    with pytest.raises(UsageError, match="only one of"):
        mesh.Trust(anonymous=True, plain=True).security()
    assert mesh.addresses(None, ["127.0.0.1"]) == [("127.0.0.1", 9999)]
    assert mesh.addresses("plain", ["10.0.0.1:1"]) == [("10.0.0.1", 1)]
    with pytest.raises(UsageError, match="--as DIRECTORY/NAME"):
        mesh.addresses(None, ["10.0.0.1"])


def test_events_are_shown_by_name_and_everything_on_one_line() -> None:
    assert values.message_as_text("/t", encode(Count(5))) == b"/t  count:5\n"
    assert values.message_as_text("/t", encode(Count(5)), broker=True) == b"/t  5\n"
    assert values.message_as_text("/t", Event("ping", "a\nb", Count(1)).encode()) == b'/t  ping("a\\nb", count:1)\n'
    assert values.message_as_text("/t", Event("ping", "a", Count(1)).encode(), broker=True) == b"/t  ping(a, 1)\n"
    batch = Batch([Event("one"), Event("two", 2)])
    assert values.message_as_text("/t", batch.encode()) == b"/t  one()\n/t  two(2)\n"
    assert values.message_as_text("\x1b", encode(b"\xff")) == b'\\x1b  "\\udcff"\n'
    with pytest.raises(InvalidData):
        values.message_as_text("/t", b"\xff")


@pytest.mark.parametrize("value", [Count(1), float("nan"), b"\xff\x00", ("x", {Port(53, "udp"): 2.5}), Event("e", 1)])
def test_what_is_printed_as_json_is_read_again(value: object) -> None:
    payload = value.encode() if isinstance(value, Event) else encode(value)
    line = values.message_as_json("/t", payload)
    assert line.count(b"\n") == 1
    for topic, expected in ((None, "/t"), ("/other", "/other")):
        found, back = values.read_message(topic, line)
        assert (found, encode(back)) == (expected, payload)


def test_percentiles_and_histogram() -> None:
    times = [number / 1e6 for number in range(1, 101)]
    assert [ping.percentile(times, each) for each in (50, 90, 99, 100)] == [50e-6, 90e-6, 99e-6, 100e-6]
    assert ping.percentile([1.0], 50) == 1.0
    for sample in (times, [1e-4], [0.0, 10.0], [1e-4] * 3):
        rows = ping.histogram(sorted(sample))
        assert len(rows) < 40
        assert sum(count for _, _, count in rows) == len(sample)
        assert rows[0][2] > 0
        assert rows[-1][2] > 0
        assert all(high > low for low, high, _ in rows)
    assert [ping.readable(each) for each in (61.24e-6, 0.00125, 2.5)] == ["61.2 us", "1.25 ms", "2.5 s"]


def test_a_nodes_file_says_everything(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'listen = ["127.0.0.1:0"]\npeers = ["10.0.0.1"]\nforward = ["/zeek/"]\nforwarding = false\npaths = 2\n'
        'on_full = "drop_oldest"\n'
        '[tls]\ndirectory = "keys"\nname = "one"\n[websocket]\nlisten = 8080\norigins = ["https://example.org"]\n'
    )
    found, said = node.load(str(file))
    assert (said["listen"], said["peers"], said["forward"]) == (["127.0.0.1:0"], ["10.0.0.1"], ["/zeek/"])
    assert (said["forwarding"], said["paths"], said["on_full"]) == (False, 2, "drop_oldest")
    assert found.tls == node.TlsSection(directory=str(tmp_path / "keys"), name="one")
    assert found.websocket is not None
    assert (found.websocket.listen, found.websocket.origins) == (8080, ("https://example.org",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listen = [", "line 1: "),
        ("\npears = []", "line 2: unknown key 'pears'; did you mean 'peers'"),
        ("[tls]\ndirectory = 'x'\nnane = 'y'", "line 3: unknown key 'tls.nane'; did you mean 'name'"),
        ("[tls]\ndirectory = 'x'", "line 1: tls: .*name"),
        ("listen = 'x'", "line 1: listen: "),
        ("\nlisten = ['x', 5]", "line 2: listen: "),
        ("on_full = 'explode'", "line 1: on_full: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        node.load(str(file))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        node.load("nowhere.toml")
