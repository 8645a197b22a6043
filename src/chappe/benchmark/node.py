"""One node of a benchmark: a process that does what lines of JSON on standard input say, and answers with such lines.

Orders come in this sequence: ``begin`` (answered by ``ready``), ``peer`` (``peered``), ``meet`` (``connected``),
``start`` (``progress``, again and again), ``stop`` (``result``, the last). What goes wrong is answered by ``failed``.
When standard input ends, the parent is gone, and the process ends at once.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from chappe.api.mesh.endpoint import Endpoint
from chappe.api.mesh.tally import Tally
from chappe.benchmark.orders import Orders, process, say
from chappe.errors import ChappeError
from chappe.mesh.messages import DATA
from chappe.storage.recordings.codec import RecordedMessage, entries

PROGRESS_S: Final = 0.2
LOOK_S: Final = 0.1  # between two looks at the network
RETRY_S: Final = 0.2
CHUNK: Final = 256  # messages handed to the endpoint at once
CACHE_BYTES_MAX: Final = 64 << 20  # payloads of shapes that come again

Messages = list[tuple[bytes, bytes, int]]  # topic, payload, kind


class LinkTraffic:
    """Frames and bytes over all links, also those that have ended."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._last: dict[tuple[str | None, Any], tuple[int, int, int]] = {}
        self._ended = [0, 0, 0]

    def look(self) -> tuple[int, int, int]:
        """Return frames sent and received, and bytes sent, until now."""
        for peer in self._endpoint.peers():
            key = (peer.id, peer.address)
            now = (peer.sent, peer.received, peer.sent_bytes)
            before = self._last.get(key, (0, 0, 0))
            if now[0] < before[0] or now[1] < before[1]:  # another link
                self._ended = [whole + part for whole, part in zip(self._ended, before, strict=True)]
            self._last[key] = now
        sent, received, size = (
            whole + sum(each[place] for each in self._last.values()) for place, whole in enumerate(self._ended)
        )
        return sent, received, size


def messages_of(file: str | None, count: int | None) -> Messages:
    if file is None:
        return []
    with open(file, "rb") as opened:
        raw = opened.read()
    made: dict[RecordedMessage, tuple[bytes, bytes, int]] = {}
    room = CACHE_BYTES_MAX
    found: Messages = []
    for entry in entries(raw, torn=lambda problem: None):  # of that, who generates the configuration is told
        if count is not None and len(found) >= count:
            break
        message = made.get(entry)
        if message is None:
            message = (entry.topic, entry.payload(), entry.kind)
            room -= len(message[1]) + len(entry.shape)
            if room > 0:
                made[entry] = message
        found.append(message)
    if count is not None and found:
        found = (found * (count // len(found) + 1))[:count]
    return found


def runs_of(messages: Messages) -> list[tuple[int, Messages]]:
    """Return messages of one kind in a row, at most so many as are handed over at once."""
    found: list[tuple[int, Messages]] = []
    for message in messages:
        if not found or found[-1][0] != message[2] or len(found[-1][1]) == CHUNK:
            found.append((message[2], []))
        found[-1][1].append(message)
    return found


class NodePlayer:
    """Sends, and says now and then how far it is."""

    def __init__(self, endpoint: Endpoint, tally: Tally) -> None:
        self._endpoint = endpoint
        self._tally = tally
        self._say_at = 0.0
        self.traffic = LinkTraffic(endpoint)
        self.sent = 0
        self.sent_at: float | None = None

    def play(self, messages: Messages, orders: Orders) -> None:
        endpoint = self._endpoint
        for kind, run in runs_of(messages):
            for chunk in [run] if kind == DATA else [[each] for each in run]:
                while not self._send(kind, chunk):
                    endpoint.node.turns.wait(partial(endpoint.room, {topic for topic, _, _ in chunk}), PROGRESS_S)
                    self.say()
                    if orders.waiting:
                        return
                self.sent += len(chunk)
            self.say()
            if orders.waiting:
                return
        self.sent_at = time.monotonic()

    def receive(self, orders: Orders) -> None:
        while not orders.waiting:
            self.say()
            self._endpoint.node.turns.wait(lambda: orders.waiting, PROGRESS_S)

    def say(self) -> None:
        """Tell how far it is, if it was not told just now."""
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + PROGRESS_S
            self.traffic.look()
            say("progress", sent=self.sent, received=self._tally.count)

    def _send(self, kind: int, chunk: Messages) -> bool:
        if kind == DATA:
            return self._endpoint.try_publish_many([(topic, payload) for topic, payload, _ in chunk]) is not None
        ((topic, payload, _),) = chunk
        return self._endpoint.try_publish(topic, payload, kind=kind) is not None


def run(orders: Orders) -> None:
    begin = orders.next("begin")
    with Endpoint(forwarding=begin["forwarding"]) as endpoint:
        tally = Tally(endpoint, begin["topics"], begin["expected"])
        messages = messages_of(begin["file"], begin["count"])
        say("ready", id=endpoint.id, port=endpoint.listen(), messages=len(messages))
        order = orders.next("peer")
        until = time.monotonic() + order["timeout_s"]
        for port in order["ports"]:
            endpoint.peer("127.0.0.1", port, retry_s=RETRY_S, timeout=until - time.monotonic())
        say("peered")
        order = orders.next("meet")
        until = time.monotonic() + order["timeout_s"]
        missing = [name for name, id in order["ids"].items() if not endpoint.await_peer(id, until - time.monotonic())]
        if missing:
            raise ChappeError(f"it does not reach {', '.join(missing)}")
        await_links(endpoint, order["links"], until)
        say("connected")
        player = NodePlayer(endpoint, tally)
        orders.next("start")
        before, cpu, dropped, started = player.traffic.look(), time.process_time(), endpoint.dropped, time.monotonic()
        player.play(messages, orders)
        player.receive(orders)
        orders.next("stop")
        cpu_s = time.process_time() - cpu
        frames_out, frames_in, bytes_out = (now - then for now, then in zip(player.traffic.look(), before, strict=True))
        say(
            "result",
            sent=player.sent,
            received=tally.count,
            send_s=_since(started, player.sent_at),
            receive_s=_since(started, tally.last_at if tally.done_at is None else tally.done_at),
            frames_out=frames_out,
            frames_in=frames_in,
            bytes_out=bytes_out,
            dropped=endpoint.dropped - dropped,
            cpu_s=cpu_s,
        )


def await_links(endpoint: Endpoint, count: int, until: float) -> None:
    """Wait until ``count`` links are known here, with all that follows from them; raises ChappeError.

    Somebody can be reached before the last links are known, and then what is measured is how they become known.
    """
    while True:
        seen = sum(link.confirmed for link in endpoint.topology().links)
        if seen >= count:
            return
        if time.monotonic() >= until:
            raise ChappeError(f"it has heard of {seen} of the {count} links")
        endpoint.node.turns.wait(lambda: False, LOOK_S)


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)


if __name__ == "__main__":
    process(run)
