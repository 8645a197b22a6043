"""Connections as TCP gives them: frames arrive whole and in order, until the connection breaks.

A connection that is reset is noticed by both ends; one that is cut is noticed by nobody: what is sent vanishes. What
was sent and not yet read is limited, as by the buffers of two kernels, so a reader that is slow, or stopped, fills the
box of the sender. Once they are full there is room again only when a good part of them is free, as with TCP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from chappe.core import Close, Dial, Flush
from chappe.sim.network import SimNetwork
from chappe.sim.world import SimClock

# On the way in one direction, as the buffers of two kernels together; the small ones make a small world feel them.
WINDOWS_BYTES = (16_384, 131_072, 1_048_576, 6_291_456)
REOPENS = 3  # this part of a window that was full is to be free before more is taken
CHUNK_BYTES = 4_096  # written at once
DELAYS_S = (0.0005, 0.005, 0.05)  # about so long takes what is sent
CONNECT_S = 0.5  # until a dial that nobody answers fails
PREFIX = 4  # bytes of a frame's length


class End(Protocol):
    name: str
    original: bool
    alive: bool

    @property
    def read_s(self) -> float:
        """Seconds for each chunk that it reads."""

    @property
    def frozen(self) -> bool: ...

    def reads(self, side: StreamSide) -> bool: ...

    def moved(self, side: StreamSide) -> None:
        """Note that there is room again in a connection that was full."""

    def accept(self, side: StreamSide) -> None: ...

    def connected(self, dial: int, side: StreamSide) -> None: ...

    def dial_failed(self, dial: int, reason: str) -> None: ...

    def read(self, side: StreamSide, bodies: list[bytes]) -> None: ...

    def broken(self, side: StreamSide, reason: str) -> None: ...

    def take(self, conn: int, bytes_max: int) -> list[bytes]: ...


class StreamSide:
    """One end of a connection; ``conn`` is its host's number for it."""

    def __init__(self, network: Streams, host: End, address: tuple[str, int]) -> None:
        self.network = network
        self.host = host
        self.address = address  # of the other end, as this one sees it
        self.conn = 0
        self.other: StreamSide = self
        self.open = True
        self.closing = False  # once all is written
        self.cut = False  # what is sent vanishes, in either direction
        self.mute = False  # what is sent here vanishes
        self.on_way = 0  # bytes written here and not yet read there
        self.window_bytes = 0
        self._full = False
        self.delay_s = 0.0
        self._arrived: deque[list[bytes] | str] = deque()  # not read yet; the last may be the reason of the end
        self._arrives_at = 0.0
        self._reading = False

    def write(self) -> None:
        """Write what the host has, as far as there is room."""
        if self._full:
            if self.on_way > self.window_bytes - self.window_bytes // REOPENS:
                self.network.net.failed[Flush] += 1
                self.note_clogged()
                return
            self._full = False
            self.host.moved(self)
        while self.open and not self._full:
            frames = self.host.take(self.conn, CHUNK_BYTES)
            if not frames:
                if self.closing:
                    self._finish()
                return
            self.network.look(self, frames)
            self.on_way += sum(map(len, frames))
            self._full = self.on_way >= self.window_bytes
            self._send(frames)

    def note_clogged(self) -> None:
        """There is no room for something now."""
        self.network.clogged[self.host.name, self.other.host.name] = self.network.clock.now

    def _send(self, what: list[bytes] | str) -> None:
        if self.cut or self.mute:
            self.network.net.failed[Flush] += 1
            return
        clock = self.network.clock
        self._arrives_at = max(self._arrives_at, clock.now + self.delay_s * (0.5 + clock.rng.random()))
        clock.at(self._arrives_at, self.other._arrive, what)

    def stall(self, seconds: float) -> None:
        """Let later frames arrive no earlier than then, as after a packet that was lost."""
        self._arrives_at = max(self._arrives_at, self.network.clock.now + seconds)

    def _arrive(self, what: list[bytes] | str) -> None:
        if self.open and not self.cut:
            self._arrived.append(what)
            self.resume()

    def resume(self) -> None:
        """Read arrived frames, if the host runs."""
        if self._arrived and not self._reading and self.host.reads(self):
            self._reading = True
            self.network.clock.after(self.host.read_s, self._read)

    def _read(self) -> None:
        self._reading = False
        if not self.open or not self._arrived or not self.host.reads(self):
            return
        frames = self._some()
        if not frames:
            reason = self._arrived.popleft()
            assert isinstance(reason, str)
            self.open = False
            self.network.forget(self)
            self.host.broken(self, reason)
            return
        self.other.on_way -= sum(map(len, frames))
        self.host.read(self, [frame[PREFIX:] for frame in frames])
        if self.other.host.alive and not self.other.host.frozen:
            self.other.write()
        self.resume()

    def _some(self) -> list[bytes]:
        """Return the frames of one read: all that are there, up to a bound; nothing at the end."""
        frames: list[bytes] = []
        size = 0
        while self._arrived and size < CHUNK_BYTES:
            found = self._arrived[0]
            if isinstance(found, str):
                break
            self._arrived.popleft()
            frames += found
            size += sum(map(len, found))
        return frames

    def close(self) -> None:
        """Close it from the host's side; waiting frames are written first."""
        self.closing = True
        self.write()

    def _finish(self) -> None:
        self.open = False
        self.network.forget(self)
        self._send("the peer closed the connection")

    def reset(self, reason: str) -> None:
        """Break it here: the host is told, unless it is dead; a frozen one once it goes on."""
        if self.open:
            self.open = False
            self._tell(reason)

    def _tell(self, reason: str) -> None:
        if self.host.alive and self.host.frozen:
            self.network.clock.after(0.05, self._tell, reason)
            return
        self.network.forget(self)
        if self.host.alive:
            self.host.broken(self, reason)


class Streams:
    """All connections and listeners.

    Args:
        net: Cuts and delays.
        look: Called with everything that is written.
        windows: The bytes that connections hold on their way.
    """

    def __init__(
        self, net: SimNetwork, look: Callable[[StreamSide, list[bytes]], None], windows: Sequence[int] | None = None
    ) -> None:
        self.net = net
        self.clock: SimClock = net.clock
        self.look = look
        self.windows = windows or WINDOWS_BYTES
        self.delays: Sequence[float] = DELAYS_S
        self.listeners: dict[tuple[str, int], End] = {}
        self.sides: list[StreamSide] = []
        self.clogged: dict[tuple[str, str], float] = {}  # names of writer and reader: when there was no room last
        # Pairs of names: what becomes of their next connection while its ends still greet each other.
        self.early: dict[frozenset[str], Callable[[StreamSide], None]] = {}

    def dial(self, host: End, dial: int, address: tuple[str, int]) -> None:
        """Connect, or fail, in a while."""
        target = self.listeners.get(address)
        delay = 0.001 + 0.02 * self.clock.rng.random()
        if target is None or not target.alive:
            self.clock.after(delay, self._fail, host, dial, "connection refused")
        elif not self.net.reachable(host.name, address[0]):
            self.clock.after(CONNECT_S, self._fail, host, dial, "it does not answer")
        else:
            self.clock.after(delay, self._connect, host, dial, address, target)

    def _fail(self, host: End, dial: int, reason: str) -> None:
        self.net.failed[Dial] += 1
        if host.alive:
            host.dial_failed(dial, reason)

    def _connect(self, host: End, dial: int, address: tuple[str, int], target: End) -> None:
        if not host.alive:
            return
        if not target.alive or not self.net.reachable(host.name, address[0]):
            self._fail(host, dial, "connection refused")
            return
        near = StreamSide(self, host, address)
        far = StreamSide(self, target, (host.name, 40_000 + dial))
        near.other, far.other = far, near
        near.delay_s = far.delay_s = self.clock.rng.choice(self.delays)
        near.window_bytes = far.window_bytes = self.clock.rng.choice(self.windows)
        self.sides += (near, far)
        call = self.early.pop(frozenset((host.name, target.name)), None)
        if call is not None:
            self.clock.after(4 * near.delay_s * self.clock.rng.random(), call, near)
        host.connected(dial, near)
        target.accept(far)

    def drop(self, side: StreamSide) -> None:
        """Close a side at once that still has frames to write."""
        if side.open:
            self.net.failed[Close] += 1
            side.open = False
            self.forget(side)
            side.other.reset("connection reset by peer")

    def forget(self, side: StreamSide) -> None:
        if side in self.sides:
            self.sides.remove(side)

    def between(self, one: str, two: str) -> list[StreamSide]:
        """The open sides of connections between two names."""
        names = {one, two}
        return [side for side in self.sides if {side.host.name, side.other.host.name} == names]

    def of(self, name: str) -> list[StreamSide]:
        return [side for side in self.sides if side.host.name == name]
