"""A benchmark from start to end: a process for each node, on this machine.

All listen at ports that the operating system chooses, peer, and wait until each knows all links, and what all others
want that it reaches. Then all start at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from chappe.benchmark.config import BenchmarkNode, links_among, reached
from chappe.benchmark.processes import BenchmarkProcess, Processes
from chappe.benchmark.report import BenchmarkReport, NodeOutcome

QUIET_S: Final = 10.0  # a link that is cut is noticed after 6 s; when nothing moved for longer, nothing will
RESULT_S: Final = 15.0  # for nodes to report their counts

Show = Callable[[str, int, int | None], None]  # what happens, how far it is, of how much


def run(nodes: Sequence[BenchmarkNode], timeout_s: float, show: Show) -> BenchmarkReport:
    """Run it.

    Args:
        nodes: As ``config.load`` has found them sound.
        timeout_s: For all of it; then what is there is reported.
        show: Called several times a second.

    Raises:
        ChappeError: It did not come to a start.
    """
    until = time.monotonic() + timeout_s
    with Processes("chappe.benchmark.node", "node ") as processes:
        for node in nodes:
            processes.start(node.name)
        benchmark = _ClusterBenchmark(nodes, processes, until, show)
        benchmark.connect()
        return benchmark.measure()


class _ClusterBenchmark:
    def __init__(self, nodes: Sequence[BenchmarkNode], processes: Processes, until: float, show: Show) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._processes = processes
        self._children = processes.children
        self._until = until
        self._show = show
        self._outcomes: dict[str, NodeOutcome] = {}

    def connect(self) -> None:
        """Run up to the moment before the start."""
        others = reached(list(self._nodes.values()))
        links = links_among(list(self._nodes.values()), others)
        for name, node in self._nodes.items():
            file = None if node.generator_file is None else str(node.generator_file)
            self._children[name].order(
                "begin",
                topics=node.topics,
                expected=node.num_inputs,
                file=file,
                count=node.num_outputs,
                forwarding=node.forwarding,
            )
        said = self._await("ready", "starting nodes")
        for name, node in self._nodes.items():
            ports = [said[peer]["port"] for peer in node.peers]
            self._children[name].order("peer", ports=ports, timeout_s=self._left)
        self._await("peered", "peering")
        for name, child in self._children.items():
            ids = {other: said[other]["id"] for other in sorted(others[name])}
            child.order("meet", ids=ids, links=links[name], timeout_s=self._left)
        self._await("connected", "waiting until all know each other")
        for name, node in self._nodes.items():
            self._outcomes[name] = NodeOutcome(name, said[name]["messages"], node.num_inputs)

    def measure(self) -> BenchmarkReport:
        start = time.monotonic()
        for child in self._children.values():
            child.order("start")
        samples: dict[str, list[tuple[float, int]]] = {name: [(0.0, 0)] for name in self._nodes}
        reason = self._follow(start, samples)
        for child in self._children.values():
            child.order("stop")
        until = time.monotonic() + RESULT_S
        while any(each.ended is None and "result" not in each.said for each in self._children.values()):
            if time.monotonic() > until:
                break
            self._processes.listen(0.1)
        for name, child in self._children.items():
            self._conclude(self._outcomes[name], child)
        return BenchmarkReport(list(self._outcomes.values()), reason, samples)

    def _follow(self, start: float, samples: dict[str, list[tuple[float, int]]]) -> str:
        """Wait until everything is done, or nothing more comes; return the reason of the latter."""
        moved_at = start
        before: dict[str, tuple[int, int]] = {}
        expected = sum(each.expected for each in self._outcomes.values())
        while True:
            self._processes.listen(0.1)
            now = time.monotonic()
            after = {name: _progress(child) for name, child in self._children.items()}
            for name in [each for each in after if after[each] != before.get(each, (0, 0))]:
                samples[name].append((now - start, after[name][1]))
                moved_at = now
            before = after
            received = sum(each for _, each in after.values())
            speed = received / max(now - start, 1e-6)
            self._show(f"received {received:,} of {expected:,} messages, {speed:,.0f}/s", received, expected)
            if all(self._is_done(name, *after[name]) for name in self._nodes):
                return ""
            if now >= self._until:
                return "the time is up"
            if now >= moved_at + QUIET_S:
                return f"nothing was sent or received anywhere for {QUIET_S:.0f} s"

    def _is_done(self, name: str, sent: int, received: int) -> bool:
        outcome = self._outcomes[name]
        if self._children[name].ended is not None:
            return True
        return sent >= outcome.to_send and received >= outcome.expected

    def _conclude(self, outcome: NodeOutcome, child: BenchmarkProcess) -> None:
        outcome.sent, outcome.received = _progress(child)
        result: dict[str, Any] = child.said.get("result", {})
        for key, value in result.items():
            setattr(outcome, key, value)
        if not result:
            outcome.ended = child.ended or "does not answer"

    def _await(self, event: str, doing: str) -> dict[str, dict[str, Any]]:
        while True:
            there = sum(event in each.said for each in self._children.values())
            self._show(f"{doing}: {there} of {len(self._children)}", there, len(self._children))
            if there == len(self._children):
                return {name: child.said[event] for name, child in self._children.items()}
            self._processes.await_some(event, self._until)

    @property
    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())


def _progress(child: BenchmarkProcess) -> tuple[int, int]:
    said = child.said.get("progress", {})
    return said.get("sent", 0), said.get("received", 0)
