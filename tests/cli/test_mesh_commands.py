"""Commands of the mesh as real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.waiting import until

from chappe import Endpoint
from chappe.api.keys import make_authority, make_certificate
from chappe.data.scalars import Count, Timespan
from chappe.data.zeek import Event

pytestmark = pytest.mark.process


def start_node(shell: Shell, *arguments: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    process = shell.start("node", "--listen", "127.0.0.1:0", "--json", *arguments)
    assert process.stdout is not None
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return process, facts


def start_subscriber(shell: Shell, peer: str, *arguments: str) -> subprocess.Popen[bytes]:
    """``chappe subscribe``, whose subscription has reached the node."""
    process = shell.start("subscribe", *arguments, "--peer", peer)
    host, _, port = peer.rpartition(":")
    with Endpoint() as probe:
        probe.peer(host, int(port))
        wanted = arguments[0].encode()
        assert probe.node.turns.wait(lambda: wanted in probe.core.peer_subscriptions(), PATIENCE_S)
    return process


def test_values_and_events_reach_a_subscriber_through_a_node(shell: Shell) -> None:
    node, facts = start_node(shell)
    peer = facts["listen"][0]
    subscriber = start_subscriber(shell, peer, "/t", "--count", "5")
    done = shell.run("publish", "/t/one", "42", "count:5", '[-1, {"a": true}]', "--peer", peer)
    assert (done.returncode, done.stderr) == (0, b"published 3 messages\n")
    done = shell.run("publish", "/t/two", "--event", "ping", "hello", "-1", "--peer", peer, "--json")
    assert json.loads(done.stdout) == {"topic": "/t/two", "published": 1, "wanted": 1, "subscribers": True}
    assert shell.run("publish", "/t/three", "--text", "--peer", peer, stdin=b"10.0.0.1\n").returncode == 0
    out, err = subscriber.communicate(timeout=PATIENCE_S)
    assert (subscriber.returncode, err) == (0, b"")
    assert out.decode().splitlines() == [
        "/t/one  42",
        "/t/one  count:5",
        '/t/one  [-1, {"a": true}]',
        '/t/two  ping("hello", -1)',
        "/t/three  address:10.0.0.1",
    ]
    assert shell.stop(node)[0] == 0


def test_json_out_is_json_in(shell: Shell) -> None:
    _, facts = start_node(shell)
    peer = facts["listen"][0]
    first = start_subscriber(shell, peer, "/first", "--json", "--count", "2")
    second = start_subscriber(shell, peer, "/second", "--json", "--count", "3")
    with Endpoint() as endpoint:
        host, _, port = peer.rpartition(":")
        endpoint.peer(host, int(port))
        assert endpoint.node.turns.wait(lambda: b"/first" in endpoint.core.peer_subscriptions(), PATIENCE_S)
        endpoint.publish("/first", Event("ping", Count(1), Timespan(5)))
        endpoint.publish("/first", "two")
        lines, _ = first.communicate(timeout=PATIENCE_S)
    assert [json.loads(line)["topic"] for line in lines.splitlines()] == ["/first", "/first"]
    assert shell.run("publish", "/second", "--format", "json", "--peer", peer, stdin=lines).returncode == 0
    moved = lines.replace(b'"/first"', b'"/second"').splitlines()
    done = shell.run("publish", "-", "--format", "json", "--peer", peer, stdin=moved[1])
    assert done.returncode == 0
    out, _ = second.communicate(timeout=PATIENCE_S)
    assert out.splitlines() == [*moved, moved[1]]


def test_a_wrong_line_stops_after_what_came_before_it(shell: Shell) -> None:
    _, facts = start_node(shell)
    peer = facts["listen"][0]
    subscriber = start_subscriber(shell, peer, "/t", "--count", "2")
    done = shell.run("publish", "/t", "--type", "count", "--peer", peer, stdin=b"1\n2\n-3\n4\n")
    assert done.returncode == 1
    assert b"line 3 of the input: " in done.stderr
    assert subscriber.communicate(timeout=PATIENCE_S)[0] == b"/t  count:1\n/t  count:2\n"


def test_many_lines_arrive_all_of_them(shell: Shell) -> None:
    _, facts = start_node(shell)
    peer = facts["listen"][0]
    subscriber = start_subscriber(shell, peer, "/t", "--count", "50000", "--on-full", "block")
    lines = b"".join(b"%d\n" % number for number in range(50_000))
    assert shell.run("publish", "/t", "--peer", peer, stdin=lines).returncode == 0
    out, _ = subscriber.communicate(timeout=PATIENCE_S)
    assert out == b"".join(b"/t  %d\n" % number for number in range(50_000))


def test_publishing_to_nobody_says_so(shell: Shell) -> None:
    _, facts = start_node(shell)
    done = shell.run("publish", "/t", "1", "--peer", facts["listen"][0])
    assert (done.returncode, done.stderr) == (0, b"published 1 message, to which nobody has subscribed\n")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("publish", "/t", "1", "--peer", "127.0.0.1:1"), 1, b"cannot peer with 127.0.0.1:1"),
        (("publish", "/t", "1", "--peer", "10.0.0.1"), 2, b"is not this machine"),
        (("publish", "/t", "1", "--peer", "nonsense:port"), 2, b"is not an address"),
        (("publish", "/t", "1", "--type", "number"), 2, b"there is no type 'number'"),
        (("publish", "/t", "x", "--type", "count"), 2, b"is not a whole number"),
        (("publish", "-", "1"), 2, b"needs --format json"),
        (("publish", "/t", "1", "--tls", "nowhere", "one"), 2, b"does not exist"),
        (("publish", "/t", "1", "--plain", "--anonymous"), 2, b"only one of"),
        (("subscribe", "/t", "--peer", "10.0.0.1"), 2, b"is not this machine"),
        (("ping", "127.0.0.1:1"), 1, b"cannot peer with 127.0.0.1:1"),
        (("node", "--listen", "0.0.0.0:0"), 2, b"is not this machine"),
        (("node", "--listen", "127.0.0.1:0", "--websocket", "0.0.0.0:0"), 2, b"is not this machine"),
        (("node", "--listen", "127.0.0.1:0", "--origin", "https://example.org"), 2, b"need --websocket"),
        (("node", "--id", "nonsense", "--listen", "127.0.0.1:0"), 2, b"is not an endpoint id"),
        (("node", "nowhere.toml"), 2, b"there is no file nowhere.toml"),
    ],
)
def test_what_cannot_be_is_one_clear_line(shell: Shell, arguments: tuple[str, ...], code: int, text: bytes) -> None:
    done = shell.run(*arguments)
    assert done.returncode == code
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_subscriber_waits_for_its_peer_and_ends_in_time(shell: Shell) -> None:
    began = time.monotonic()
    done = shell.run("subscribe", "/t", "--peer", "127.0.0.1:1", "--seconds", "1.5")
    assert (done.returncode, done.stdout) == (1, b"")  # there never was a peer
    assert time.monotonic() - began >= 1.5
    assert done.stderr.count(b"cannot peer with 127.0.0.1:1") == 1
    assert b"still trying" in done.stderr


def test_a_subscriber_may_listen(shell: Shell) -> None:
    subscriber = shell.start("subscribe", "/t", "--listen", "127.0.0.1:0", "--count", "1")
    assert subscriber.stderr is not None
    where = subscriber.stderr.readline().decode().split()[-1]
    assert shell.run("publish", "/t", "1", "--peer", where).returncode == 0
    assert subscriber.communicate(timeout=PATIENCE_S)[0] == b"/t  1\n"


def test_following_ends_well_and_a_count_that_is_not_reached_does_not(shell: Shell) -> None:
    _, facts = start_node(shell)
    peer = facts["listen"][0]
    following = start_subscriber(shell, peer, "/t")
    counting = start_subscriber(shell, peer, "/c", "--count", "1")
    assert shell.stop(following)[0] == 0
    assert shell.stop(counting)[0] == 143
    again = start_subscriber(shell, peer, "/a")
    assert shell.stop(again, signal.SIGINT)[0] == 0


def test_ping_measures(shell: Shell) -> None:
    _, facts = start_node(shell)
    peer = facts["listen"][0]
    done = shell.run("ping", peer, "--count", "20", "--interval", "0", "--json")
    found = json.loads(done.stdout)
    assert (found["peer"], found["id"], found["original"], found["count"]) == (peer, facts["id"], False, 20)
    assert 0 < found["min_us"] <= found["p50_us"] <= found["p90_us"] <= found["p99_us"] <= found["max_us"]
    assert sum(each["count"] for each in found["histogram"]) == 20
    done = shell.run("ping", peer, "--count", "3")
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith(f"{peer} is {facts['id']} (chappe), peered in ")
    assert lines[1].startswith("3 round trips: min ")
    assert "█" in done.stdout.decode()


def test_nodes_reach_each_other_by_a_file_with_certificates(shell: Shell) -> None:
    keys = shell.directory / "keys"
    make_authority(keys)
    make_certificate(keys, "one")
    _, facts = start_node(shell, "--tls", "keys", "one")
    file = shell.directory / "node.toml"
    file.write_text(
        f'listen = ["127.0.0.1:0"]\npeers = ["localhost:{facts["listen"][0].rpartition(":")[2]}"]\n'
        '[tls]\ndirectory = "keys"\nname = "one"\n'
    )
    other = shell.start("node", "node.toml", "--json")
    assert other.stdout is not None
    where = json.loads(other.stdout.readline())["listen"][0]
    tls = ("--tls", "keys", "one")
    subscriber = shell.start("subscribe", "/t", "--count", "1", "--peer", facts["listen"][0], *tls)
    done = shell.run("publish", "/t", "1", "--peer", where, *tls)
    while b"nobody" in done.stderr:  # until the subscription has come so far
        done = shell.run("publish", "/t", "1", "--peer", where, *tls)
    assert subscriber.communicate(timeout=PATIENCE_S)[0] == b"/t  1\n"
    refused = shell.run("publish", "/t", "1", "--peer", where)
    assert refused.returncode == 1
    report = json.loads(other.stdout.readline())
    assert [each["status"] for each in report["peers"] if each["id"] == facts["id"]] == ["peered"]


def test_a_node_says_who_comes_and_how_things_are(shell: Shell) -> None:
    node = shell.start("node", "--listen", "127.0.0.1:0")
    assert node.stderr is not None
    first = node.stderr.readline().decode()
    assert first.endswith("; Ctrl-C stops\n")
    where = first.split(" at ")[1].split(";")[0]
    with Endpoint() as endpoint:
        host, _, port = where.rpartition(":")
        endpoint.peer(host, int(port))
        lines = [node.stderr.readline().decode() for _ in range(2)]
        assert any(line.startswith(f"peered with {endpoint.id}") for line in lines)
    assert shell.stop(node)[2].endswith("node stopped\n")


def test_a_node_has_a_face_for_web_pages(shell: Shell) -> None:
    pytest.importorskip("uvicorn")
    from websockets.sync.client import connect
    from websockets.typing import Origin

    node, facts = start_node(shell, "--websocket", "0", "--origin", "https://example.org")
    peer = facts["listen"][0]
    with connect(facts["websocket"], origin=Origin("https://example.org"), proxy=None) as client:
        client.send('["/t"]')
        assert json.loads(client.recv(PATIENCE_S))["endpoint"] == facts["id"]
        assert shell.run("publish", "/t", "1", "--peer", peer).returncode == 0
        assert json.loads(client.recv(PATIENCE_S))["data"] == 1
        assert shell.stop(node)[0] == 0


@pytest.mark.parametrize("on_stale", ["end", "drop"])
def test_a_subscriber_whose_output_nobody_takes_hears_that_it_is_too_slow(shell: Shell, on_stale: str) -> None:
    node, facts = start_node(shell)
    peer = facts["listen"][0]
    options = ("--max-age", "0.1s", "--on-stale", on_stale, "--count", "1500")
    subscriber = start_subscriber(shell, peer, "/t", *options)
    lines = b"".join(b"%04d%s\n" % (n, b"x" * 400) for n in range(1000))  # more than a pipe takes
    assert shell.run("publish", "/t", "--peer", peer, stdin=lines).returncode == 0
    # A pipe that is full, and 0.1 s more; then the rest is too old.
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 0.5)
    if on_stale == "end":
        out, err = subscriber.communicate(timeout=PATIENCE_S)
        assert subscriber.returncode == 1
        assert b"s old when it was taken, at most 0.1 s are allowed" in err
        assert 0 < len(out.splitlines()) < 1000
    else:
        seen: list[bytes] = []
        reading = threading.Thread(target=lambda: seen.extend(iter(subscriber.stdout.readline, b"")))  # type: ignore[union-attr]
        reading.start()
        until(lambda: shell.run("publish", "/t", "new", "--peer", peer) and b"/t  new\n" in seen)  # it goes on
        subscriber.send_signal(signal.SIGTERM)
        reading.join(PATIENCE_S)
        assert subscriber.stderr is not None
        err_text, code = subscriber.stderr.read().decode(), subscriber.wait(PATIENCE_S)
        assert len(seen) < 1000
        assert code != 0  # --count was not reached
        assert "for a subscriber to /t: they were older than 0.1 s, up to " in err_text
        assert "messages were dropped: this was too slow\n" in err_text
    assert shell.stop(node)[0] == 0
