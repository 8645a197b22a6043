"""The table of status and error codes holds: each code that occurs is made to occur here."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint
from chappe.api.mesh.arguments import encode_value
from chappe.api.mesh.told import ERRORS, STATUSES, told
from chappe.channel import ChannelProducer, Dropped
from chappe.core import Dial, Report
from chappe.data import binary, json
from chappe.errors import BrokenClone, ChappeError, ErrorCode, PeeringError, StorageFull
from chappe.kv.entity import Entity
from chappe.kv.events import CloneDropped, CloneResyncs, CommitFailed
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import MessagesDropped
from chappe.mesh.links.dialling import ONCE
from chappe.mesh.links.greetings import Code, DropConn, Hello, OriginatorAck, pack_greeting
from chappe.storage.recordings.codec import HEADER, entries

TABLE: Final = Path(__file__).parent.parent / "docs" / "reference" / "codes.md"
ROW: Final = re.compile(r"^\| (\d+) \| `(\w+)` \| (occurs|cannot) \| (.+) \|$")
OWN: Final = b"\x11" * 16
PEER: Final = b"\x22" * 16


def rows(title: str) -> list[tuple[int, str, str]]:
    """Code, name and whether it occurs, of the table below a title."""
    text = TABLE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = [match.groups() for line in text.splitlines() if (match := ROW.match(line))]
    return [(int(code), name, here) for code, name, here, _ in found]


def raised(call: Callable[[], object]) -> int:
    """The code of the error that a call raises."""
    with pytest.raises(ChappeError) as found:
        call()
    return found.value.code


def on_topic(report: object) -> int:
    """The code that a report has on the topic of errors."""
    found = told(report)
    assert found is not None
    topic, value = found
    assert topic == ERRORS
    assert isinstance(value, tuple)
    return ErrorCode[str(value[1]).upper()]


def shaken(*frames: bytes, closed: bool = False, later_s: float = 0.0) -> int:
    """How a handshake fails whose peer answers so; the same code is reported and raised."""
    core = EndpointCore(OWN, EndpointOptions(), 0.0)
    (dial,) = [each for each in core.peer("127.0.0.1", 1, ONCE, 7, 0.0) if isinstance(each, Dial)]
    actions: list[Any] = list(core.handle_link(dial.link, ("127.0.0.1", 1), 0.0))
    actions += core.handle_frames(dial.link, list(frames), 0.0) if frames else []
    actions += core.handle_gone(dial.link, "it was closed", 0.0) if closed else []
    actions += core.handle_timeout(later_s) if later_s else []
    reported = [each.event for each in actions if isinstance(each, Report) and isinstance(each.event, PeeringError)]
    resolved = [each.outcome for each in actions if getattr(each, "ticket", None) == 7]
    assert len(reported) == len(resolved) == 1
    assert reported[0].code == resolved[0].code
    return on_topic(reported[0])


def greeting(frame: object) -> bytes:
    return pack_greeting(frame)[4:]  # type: ignore[arg-type]


def with_endpoint(call: Callable[[Endpoint], object]) -> int:
    with Endpoint() as endpoint:
        return raised(lambda: call(endpoint))


def twice(endpoint: Endpoint) -> None:
    endpoint.attach_master("s")
    endpoint.attach_clone("s", timeout=0)


def stale(endpoint: Endpoint) -> None:
    endpoint.attach_clone("s", timeout=0).get("key")


def silent(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint.peer("127.0.0.1", listening.getsockname()[1], timeout=0.01)


def listened_twice(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint.listen("127.0.0.1", listening.getsockname()[1])


def record_into(directory: Path) -> None:
    with Endpoint(recording_directory=directory):
        Endpoint(recording_directory=directory)


def dropped_clone() -> int:
    channel: ChannelProducer[str, bytes] = ChannelProducer(len, now=0.0, silent_s=5.0)
    channel.add("a", 0.0)
    (dropped,) = [each for each in channel.tick(9.0) if isinstance(each, Dropped)]
    return on_topic(CloneDropped("s", Entity(PEER, 1), dropped.reason, dropped.code))


def closed_endpoint() -> int:
    endpoint = Endpoint()
    endpoint.close()
    return raised(lambda: endpoint.publish("/t", 1))


def write(name: str, *arguments: object) -> Callable[[Endpoint], object]:
    def call(endpoint: Endpoint) -> object:
        store = endpoint.attach_master("s")
        store.put("text", "x")
        store.put("large", 2**63 - 1)
        return getattr(store, name)(*arguments)

    return call


def recording(more: bytes) -> int:
    return raised(lambda: list(entries(more)))


# Of each code that occurs, how.
OCCURS: Final[dict[int, Callable[[Path], int]]] = {
    1: lambda _: on_topic(MessagesDropped("for a subscriber", 2)),
    2: lambda _: shaken(greeting(Hello(PEER, 9, 9))),
    3: lambda _: with_endpoint(lambda endpoint: endpoint.unpeer("127.0.0.1", 1)),
    4: lambda _: with_endpoint(lambda endpoint: endpoint.peer("127.0.0.1", free_ports(), retry_s=0)),
    5: lambda _: shaken(closed=True),
    6: lambda _: shaken(later_s=1000.0),
    7: lambda _: with_endpoint(twice),
    8: lambda _: with_endpoint(lambda endpoint: endpoint.attach_clone("s", timeout=0.01)),
    9: lambda _: with_endpoint(write("decrement", "nothing", 1)),
    10: lambda _: with_endpoint(silent),
    11: lambda _: with_endpoint(write("increment", "text", 1)),
    12: lambda _: with_endpoint(write("increment", "large", 2**63 - 1)),
    13: lambda _: on_topic(CommitFailed("s", 1, str(StorageFull("the disk is full")))),
    14: lambda _: with_endpoint(stale),
    15: lambda directory: raised(lambda: record_into(directory)),
    16: lambda directory: raised(lambda: record_into(under_a_file(directory))),
    17: lambda _: recording(HEADER + struct.pack("=BH", 1, 5)),
    18: lambda _: recording(HEADER + b"\x01"),
    19: lambda _: raised(lambda: binary.decode(b"\x63")),
    20: lambda _: shaken(b"\x63"),
    22: lambda _: raised(lambda: encode_value(object())),
    24: lambda _: dropped_clone(),
    25: lambda _: with_endpoint(lambda endpoint: endpoint.peer("127.0.0.1", 70_000)),
    27: lambda _: on_topic(CloneResyncs("s", BrokenClone("change 2 is gone"))),
    28: lambda _: closed_endpoint(),
    31: lambda _: shaken(greeting(OriginatorAck())),
    33: lambda _: with_endpoint(lambda endpoint: endpoint.publish("/t", 1, to="11111111-1111-5111-8111-111111111111")),
    35: lambda _: with_endpoint(listened_twice),
    36: lambda _: with_endpoint(write("put", "large", "x" * 20_000_000)),
    37: lambda _: raised(lambda: binary.decode(b"\x03\x00")),
    38: lambda _: shaken(b"\x06NOPE" + PEER + b"\x01\x01"),
    39: lambda _: shaken(greeting(DropConn(PEER, Code.REDUNDANT, "redundant connection"))),
    40: lambda _: shaken(greeting(DropConn(PEER, Code.LOGIC_ERROR, "another key"))),
    41: lambda _: raised(lambda: json.loads("{")),
}


def under_a_file(directory: Path) -> Path:
    (directory / "file").write_text("x")
    return directory / "file" / "recording"


def test_the_table_has_every_error_by_its_name() -> None:
    assert [(code, name) for code, name, _ in rows("Errors")] == [(each, each.text) for each in ErrorCode]


def test_every_error_that_occurs_is_shown_to_occur() -> None:
    assert [code for code, _, here in rows("Errors") if here == "occurs"] == sorted(OCCURS)


@pytest.mark.parametrize("code", sorted(OCCURS), ids=lambda code: ErrorCode(code).text)
def test_the_error_occurs(code: int, tmp_path: Path) -> None:
    assert OCCURS[code](tmp_path) == code


def test_every_status_of_the_table_comes_as_a_message() -> None:
    names: list[str] = []

    def take(subscriber: Any) -> Sequence[str]:
        names.extend(str(each.data[1]) for each in subscriber.get_many(100, 0.0))
        return names

    with Endpoint() as here:
        subscriber = here.subscribe(STATUSES.decode())
        with Endpoint() as there:
            port = there.listen()
            here.peer("127.0.0.1", port)
            here.unpeer("127.0.0.1", port, timeout=PATIENCE_S)
            here.peer("127.0.0.1", port)
        until(lambda: len(take(subscriber)) == 8)

    expected = [name for _, name, here_too in rows("Statuses") if here_too == "occurs"]
    assert sorted(set(names)) == sorted(expected)
    assert names == [
        *["endpoint_discovered", "peer_added", "peer_removed", "endpoint_unreachable"],
        *["endpoint_discovered", "peer_added", "peer_lost", "endpoint_unreachable"],
    ]
