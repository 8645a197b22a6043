"""A short model of Broker's earlier updates of routes, versioned path sets, that counts their frames.

An update carries the path that it took and a logical time for each hop. An endpoint that gets one remembers the path,
raises its own clock if that is new, and sends the update on, with itself at the end, to all neighbours that are not on
the path. An endpoint that hears of another for the first time floods its own subscription. Written from a description
of the algorithm; losses and revocations are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tests.worlds.scale.shapes import Edge, neighbours

from chappe.data.logical import LamportTimestamp

Path = tuple[int, ...]


class PathSets:
    """Endpoints 0, 1, 2, ... and the links between them."""

    def __init__(self, edges: Iterable[Edge], count: int) -> None:
        self._beside = neighbours(edges, count)
        self.clocks = [LamportTimestamp(1)] * count
        self.paths: list[dict[int, set[Path]]] = [{} for _ in range(count)]  # of each: to whom, over which hops
        self.frames = 0

    def join(self) -> int:
        """All of them flood their subscriptions, and again for whom they discover; returns the frames."""
        for at, beside in enumerate(self._beside):
            for each in beside:
                self.paths[at].setdefault(each, set()).add((each,))  # from the handshake
        return self._run(range(len(self._beside)))

    def change(self, endpoint: int) -> int:
        """One changes its filter; returns the frames."""
        return self._run([endpoint])

    def _run(self, origins: Iterable[int]) -> int:
        before = self.frames
        way: deque[tuple[int, Path, Sequence[LamportTimestamp]]] = deque()
        for each in origins:
            self._flood(each, way)
        while way:
            at, path, times = way.popleft()
            self._take(at, path, times, way)
        return self.frames - before

    def _flood(self, origin: int, way: deque[tuple[int, Path, Sequence[LamportTimestamp]]]) -> None:
        self.clocks[origin] = self.clocks[origin].incremented()
        self._send(self._beside[origin], (origin,), (self.clocks[origin],), way)

    def _take(
        self, at: int, path: Path, times: Sequence[LamportTimestamp],
        way: deque[tuple[int, Path, Sequence[LamportTimestamp]]],
    ) -> None:  # fmt: skip
        known = self.paths[at]
        discovered = any(each not in known for each in path)
        back = path[::-1]
        if back not in known.setdefault(path[0], set()):
            known[path[0]].add(back)
            self.clocks[at] = self.clocks[at].incremented()
        onwards = [each for each in self._beside[at] if each not in path]
        self._send(onwards, (*path, at), (*times, self.clocks[at]), way)
        if discovered:
            self._flood(at, way)

    def _send(
        self, to: Iterable[int], path: Path, times: Sequence[LamportTimestamp],
        way: deque[tuple[int, Path, Sequence[LamportTimestamp]]],
    ) -> None:  # fmt: skip
        for each in to:
            self.frames += 1
            way.append((each, path, times))
