"""Many clients that ask one map server for a snapshot in the same moment: it serves them in turn, in bounded memory."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import zmq
from crc32c import crc32c
from tests.ports import free_ports

from benchmarks.children import Children
from benchmarks.link import orders, say, tether
from benchmarks.maps_members import MEMBERS
from benchmarks.outcome import Line
from benchmarks.settings import Settings
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say_chappe
from chappe.kv.chp.source import BUSY_S

CROWD = "benchmarks.maps_crowd"
CLIENTS = 10_000
PROCESSES = 5
KEYS = {"clients of chappe": 1_000, "clients of the Guide's protocol": 100}  # of the latter each key is a message
GROWTH_MAX_KIB = 64.0  # for each; ZeroMQ keeps some 30 KiB of buffers for a connection on which it has sent
CONNECT = 100  # at once in each process, as a kernel lets few connections wait to be accepted
PAUSE_S = 0.02  # between two looks: what is measured is the server
SILENCE_S = 100.0


class _Asker:
    """One client, as far as its snapshot: of chappe or of the Guide's protocol."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], port: int, session: bytes) -> None:
        self.whole = False
        self._session = session
        self._count = self._checksum = 0
        self._stream = 0
        self._again_at = 0.0
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._send(say_chappe.Taken(0, 0, 0, 0))  # of no stream, which is refused: then it is connected

    def connected(self) -> bool:
        """Whether the server has answered."""
        return any(True for _ in self._received())

    def ask(self, chappe: bool) -> None:
        """Ask for the snapshot."""
        if chappe:
            self._stream = 1
            self._again_at = time.monotonic() + BUSY_S
            self._send(say_chappe.Hello(1, self._session, (b"",), b"", 0, 0))
        else:
            self._socket.send_multipart(chp.icanhaz(b""))

    def look(self, now: float) -> None:
        """Take what has come; whoever waits for long asks again, as chappe's clients do."""
        for frames in self._received():
            if frames[0] == say_chappe.MARK:
                self._take(say_chappe.from_server(frames), now)
            else:
                self._take_plain(chp.decode_update(frames))
        if self._stream and not self.whole and now >= self._again_at:
            self._stream += 1
            self._again_at = now + BUSY_S
            self._count = self._checksum = 0
            self._send(say_chappe.Hello(self._stream, self._session, (b"",), b"", 0, 0))

    def _take(self, message: say_chappe.FromServer, now: float) -> None:
        if message.stream != self._stream:
            return
        if isinstance(message, say_chappe.Refused):
            if message.reason != "busy":
                sys.exit(f"a client was refused: {message.reason}")
        elif isinstance(message, say_chappe.Piece):
            self._again_at = now + SILENCE_S
            self._count += len(say_chappe.decode_entries(message.entries))
            self._checksum = crc32c(bytes(message.entries), self._checksum)
        elif isinstance(message, say_chappe.Whole):
            if (message.count, message.checksum) != (self._count, self._checksum):
                sys.exit("a snapshot is not whole")
            self._finish(self._count)
            self._send(say_chappe.Goodbye(self._stream))

    def _take_plain(self, update: chp.Update) -> None:
        if update.key == chp.KTHXBAI:
            self._finish(self._count)
        else:
            self._count += 1

    def _finish(self, keys: int) -> None:
        self.whole = True
        self.keys = keys

    def _send(self, message: say_chappe.FromClient) -> None:
        self._socket.send_multipart(say_chappe.encode(message))

    def _received(self) -> Iterator[list[bytes]]:
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            yield self._socket.recv_multipart()


def askers(options: dict[str, Any]) -> None:
    """``clients`` of them; the order ``ask``: all ask, and it is told when the last has its snapshot."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, options["clients"] + 10)
    first = options["first"]
    every: list[_Asker] = []
    while len(every) < options["clients"]:
        numbers = range(first + len(every), first + min(len(every) + CONNECT, options["clients"]))
        more = [_Asker(context, options["port"], chp.session_of(each.to_bytes(chp.SESSION_BYTES))) for each in numbers]
        _until(lambda each: each.connected(), more)
        every += more
    say(ready=True)
    for order in orders():
        for each in every:
            each.ask(order["chappe"])
        _until(lambda each: each.look(time.monotonic()) or each.whole, every)
        say(end=time.monotonic_ns(), fewest=min(each.keys for each in every))


def _until(so: Any, every: list[_Asker]) -> None:
    waiting, until = every, time.monotonic() + SILENCE_S
    while waiting := [each for each in waiting if not so(each)]:
        if time.monotonic() > until:
            sys.exit(f"{len(waiting)} clients got nothing within {SILENCE_S:g} s")
        time.sleep(PAUSE_S)


def crowd(settings: Settings) -> list[Line]:
    """Clients of each kind, in a few processes, with connections that are there already."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the server's too: it has a connection to each
    return [_crowd(settings, what, keys) for what, keys in KEYS.items()]


def _crowd(settings: Settings, what: str, keys: int) -> Line:
    each = settings.count(CLIENTS) // PROCESSES
    with Children(settings.work / f"maps-crowd-{keys}") as children:
        port = free_ports(3)  # of thousands of connections that have ended the system may have no three in a row
        server = children.start(MEMBERS, "server", port=port)
        server.hear()
        writer = children.start(MEMBERS, "client", port=port)
        writer.hear()
        writer.ask(do="fill", count=keys)
        writer.finish()
        groups = [
            children.start(CROWD, "askers", port=port, clients=each, first=number * each) for number in range(PROCESSES)
        ]
        for group in groups:
            group.hear()
        before, began, cpu_s = server.rss_mib(), time.monotonic_ns(), server.cpu_s()
        for group in groups:
            group.order(chappe=what.endswith("chappe"))
        told = [group.hear() for group in groups]
        after, peak, cpu_s = server.rss_mib(), server.rss_mib("VmHWM"), server.cpu_s() - cpu_s
    seconds = (max(facts["end"] for facts in told) - began) / 1e9
    fewest = min(facts["fewest"] for facts in told)
    clients = each * PROCESSES
    return Line(
        f"map: {clients:,} {what} ask for a snapshot of {keys:,} keys at once",
        f"all have it after {seconds:.1f} s; the server takes {peak - before:+.0f} MiB meanwhile",
        f"each gets all keys; < {GROWTH_MAX_KIB:.0f} KiB more for each",
        met=fewest == keys and 1024 * (peak - before) < GROWTH_MAX_KIB * clients,
        note=f"server {before:.0f} MiB before, with their connections, {peak:.0f} at most, {after:.0f} afterwards; "
        f"{1e6 * cpu_s / clients:.0f} us of its processor for each client; the fewest keys that one got: {fewest:,}",
        numbers={"seconds": seconds, "before_mib": before, "peak_mib": peak, "after_mib": after},
    )


if __name__ == "__main__":
    tether()
    askers(json.loads(sys.argv[2]))
