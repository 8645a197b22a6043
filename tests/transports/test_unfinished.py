"""Frames that are begun and not finished: their time, and their room."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chappe.defaults import FRAME_BYTES_S, FRAME_S, KIB, MESH_MESSAGE_BYTES_MAX, MIB, UNFINISHED_BYTES_MAX
from chappe.transports.tcp import TcpLink, Unfinished

SIZE = 1000


class Far:
    """The other end of a link."""

    def __init__(self, number: int, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.sock = stack.enter_context(socket.create_connection(listener.getsockname()))
        near, _ = listener.accept()
        self.link = TcpLink(near, number, None, None)
        self.link.bytes_max = MESH_MESSAGE_BYTES_MAX
        stack.callback(self.link.close)

    def send(self, data: bytes) -> list[bytes]:
        """Have bytes arrive, in pieces that the socket holds; returns what frames they complete."""
        found: list[bytes] = []
        for at in range(0, len(data), 32 * KIB):
            piece = data[at : at + 32 * KIB]
            self.sock.sendall(piece)
            wanted = self.link.unfinished + len(piece)
            while self.link.unfinished < wanted:
                self.link.receive()
            found += self.link.frames(1000, MIB)
        return found


@pytest.fixture
def fars() -> Iterator[list[Far]]:
    with ExitStack() as stack:
        yield [Far(number, stack) for number in range(3)]


def begun(far: Far, unfinished: Unfinished, size: int, now: float) -> None:
    """A frame of so many bytes lacks its last one."""
    far.send((size + 1).to_bytes(4, "big") + bytes(size))
    unfinished.note(far.link, now)


def test_a_frame_has_a_time_that_grows_with_its_size_and_trickling_does_not_prolong_it(fars: list[Far]) -> None:
    unfinished = Unfinished()
    size = 640 * KIB
    assert unfinished.due() == math.inf
    fars[0].send((2 * size).to_bytes(4, "big") + bytes(size))
    unfinished.note(fars[0].link, 10.0)
    fars[0].send(b"x")
    unfinished.note(fars[0].link, 20.0)

    due = 10.0 + FRAME_S + (2 * size + 4) / FRAME_BYTES_S
    assert unfinished.due() == pytest.approx(due)
    assert unfinished.too_late(due - 1.0) == []
    assert unfinished.too_late(due + 1.0) == [fars[0].link]
    unfinished.forget(fars[0].link)
    assert unfinished.due() == math.inf


def test_whoever_goes_on_finishing_frames_is_never_too_late(fars: list[Far]) -> None:
    unfinished = Unfinished()
    far = fars[0]
    begun(far, unfinished, SIZE, 0.0)
    for now in range(0, 1000, 20):
        assert len(far.send(b"x" + (SIZE + 1).to_bytes(4, "big") + bytes(SIZE))) == 1
        unfinished.note(far.link, now)
        assert unfinished.too_late(now + 19) == []
    assert len(far.send(b"x")) == 1
    unfinished.note(far.link, 1000.0)
    assert unfinished.due() == math.inf


def test_while_nothing_is_read_nobody_is_too_late(fars: list[Far]) -> None:
    unfinished = Unfinished()
    begun(fars[0], unfinished, SIZE, 0.0)
    fars[0].link.reading = False
    assert unfinished.due() == math.inf
    assert unfinished.too_late(1e6) == []
    fars[0].link.reading = True
    unfinished.begin_again(fars[0].link, 1e6)
    assert unfinished.too_late(1e6 + FRAME_S / 2) == []


def test_where_all_have_too_much_the_slowest_is_given_up(fars: list[Far], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.transports.tcp.UNFINISHED_BYTES_MAX", 3 * SIZE)
    unfinished = Unfinished()
    begun(fars[0], unfinished, SIZE, 50.0)
    begun(fars[1], unfinished, SIZE, 0.0)
    assert unfinished.surplus(60.0) is None
    begun(fars[2], unfinished, SIZE, 55.0)
    assert unfinished.surplus(60.0) is fars[1].link
    unfinished.forget(fars[1].link)
    assert unfinished.surplus(60.0) is None
    assert UNFINISHED_BYTES_MAX > 2 * MESH_MESSAGE_BYTES_MAX


def test_a_frame_that_comes_byte_by_byte_is_kept_in_few_parts(fars: list[Far]) -> None:
    far = fars[0]
    frame = (10_000).to_bytes(4, "big") + bytes(10_000)
    found = []
    for at in range(len(frame)):
        found += far.send(frame[at : at + 1])
        assert len(far.link._parts) <= 4
    assert found == [bytes(10_000)]
