"""One endpoint among thousands of others that are only spoken of: what a network costs each of its endpoints.

The endpoint and its neighbours are real. All else is link states, which come from every neighbour as they would in the
whole network: the nearest first.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from tests.worlds.scale.measure import QUIET_S, deep_bytes
from tests.worlds.scale.network import Network, id_of
from tests.worlds.scale.shapes import eccentricity, make, neighbours, parents

from chappe.mesh.messages import LinkState, Neighbour, pack_link_state

VERSION = 1_000_000  # higher than those that the real ones have told
_PREFIX = 4  # bytes of a frame's length


@dataclass
class Alone:
    """One endpoint."""

    shape: str
    endpoints: int
    links: int  # of all
    reach: int  # links to the farthest
    frames: int = 0  # link states that came
    join_cpu_s: float = 0.0  # of the one endpoint
    endpoint_bytes: int = 0
    subscribe_cpu_s: float = 0.0  # somebody far away wants something new
    cut_cpu_s: float = 0.0  # a link far away ends: two link states
    publish_cpu_s: float = 0.0  # the first publication afterwards to a topic that a tenth wants


def measure_alone(shape: str, endpoints: int, seed: int = 1) -> Alone:
    """Measure an endpoint in the middle of the numbers, which is not a special place in any shape."""
    edges = make(shape, endpoints, seed)
    beside = neighbours(edges, endpoints)
    centre = endpoints // 2
    # Numbers as the small network has them: the endpoint first, then its neighbours, the nearest first.
    order = list(parents(beside, centre))
    number = {each: at for at, each in enumerate(order)}
    found = Alone(shape, endpoints, len(edges), eccentricity(beside, centre))
    degree = len(beside[centre])
    network = Network(1 + degree)
    network.connect((0, each) for each in range(1, 1 + degree))
    network.settle(QUIET_S)
    conns = network.connections(0)
    core = network.cores[0]

    def state(at: int, version: int, more: tuple[bytes, ...] = (), without: int | None = None) -> bytes:
        wanted = (b"/all/%d" % (at % 10), *more)
        others = tuple(Neighbour(id_of(number[each])) for each in beside[order[at]] if number[each] != without)
        return pack_link_state(id_of(1), LinkState(id_of(at), version, True, wanted, others))

    def hear(*frames: bytes) -> float:
        """Have frames come from all neighbours; returns the processor time."""
        bodies = [(conn, [_as_from(frame, peer) for frame in frames]) for conn, peer in conns.items()]
        began = time.process_time()
        for conn, of in bodies:
            for at in range(0, len(of), core.messages_max(conn)):
                core.handle_frames(conn, of[at : at + core.messages_max(conn)], network.now)
                for each in conns:
                    core.take(each, 1 << 40)
        return time.process_time() - began

    gc.collect()  # what was measured before is not to be looked through meanwhile
    gc.disable()
    try:
        for first in range(1, endpoints, 100):
            frames = [state(at, VERSION) for at in range(first, min(first + 100, endpoints))]
            found.frames += len(frames) * degree
            found.join_cpu_s += hear(*frames)
    finally:
        gc.enable()
    if len(core.filters()) != endpoints - 1:
        raise RuntimeError(f"the endpoint knows {len(core.filters())} others of {endpoints - 1}")
    found.endpoint_bytes = deep_bytes(core)
    last = endpoints - 1
    found.subscribe_cpu_s = hear(state(last, VERSION + 1, (b"/new",)))
    other = number[beside[order[last]][0]]
    found.cut_cpu_s = hear(state(last, VERSION + 2, (b"/new",), other), state(other, VERSION + 2, (), last))
    began = time.process_time()
    core.publish(b"/all/3", b"", now=network.now)
    found.publish_cpu_s = time.process_time() - began
    return found


def _as_from(frame: bytes, peer: bytes) -> bytes:
    """The body of a frame as a neighbour passes it on."""
    return peer + frame[_PREFIX + len(peer) :]
