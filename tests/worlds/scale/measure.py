"""What a network of one shape costs: joining, changes, publications, memory and processor time.

Frames and virtual times are the same in every run; processor times and memory depend on the machine.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from tests.worlds.scale.network import LATENCY_S, LINK_STATES, LISTS, MESSAGES, WITH_TIME, Network
from tests.worlds.scale.shapes import Edge, eccentricity, make, neighbours, tree_links

from chappe.defaults import DROPS_REPORT_S, TELL_PAUSE_MAX_S

QUIET_S: Final = 2.5 * TELL_PAUSE_MAX_S  # nothing is held longer: who learned nothing for so long will learn nothing
PUBLISHED_S: Final = 1.5 * DROPS_REPORT_S  # nobody waits longer to report a loss, or to confirm
SAMPLES: Final = 5  # changes of each kind, and publishers for each number of receivers
REPEATS: Final = 4  # publications after the first of each, which may have to tell the way
STREAM: Final = 250  # publications of a stream ...
STREAM_PAUSE_S: Final = 0.001  # ... one after the other
_SHARED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)  # that all endpoints of a process have in common


@dataclass
class Change:
    """Changes of one kind, all together."""

    count: int = 0
    frames: int = 0  # of link states, and lists of them
    settle_s: float = 0.0  # the slowest
    cpu_s: float = 0.0


@dataclass
class Publications:
    """Publications to so many receivers each, all together."""

    receivers: int
    count: int = 0
    tree: int = 0  # frames that the shortest-path trees need
    frames: int = 0
    first: int = 0  # frames of any kind with the first publication of each publisher ...
    first_tree: int = 0  # ... and what the trees of these need
    others: int = 0  # frames of other kinds with the later ones: confirmations, reports of losses, ...
    stream: int = 0  # frames of any kind with publications in quick succession ...
    stream_tree: int = 0  # ... and what their trees need
    delivered: int = 0  # of the later ones

    @property
    def ratio(self) -> float:
        """Frames against what is needed."""
        return self.frames / self.tree


@dataclass
class Report:
    """One network."""

    shape: str
    endpoints: int
    links: int
    reach: int  # links from endpoint 0 to the farthest
    join: dict[str, int] = field(default_factory=dict)  # frames by kind
    join_bytes: int = 0  # of link states
    join_s: float = 0.0  # until the last endpoint learned the last news
    join_cpu_s: float = 0.0  # of all endpoints together, with the network's own
    endpoint_bytes: int = 0  # the mean of some, each as if it were alone
    process_bytes: int = 0  # the largest that this process ever was
    changes: dict[str, Change] = field(default_factory=dict)
    publications: list[Publications] = field(default_factory=list)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Report:
        """What ``asdict`` has made into plain values."""
        report = cls(**fields)
        report.changes = {what: Change(**each) for what, each in fields["changes"].items()}
        report.publications = [Publications(**each) for each in fields["publications"]]
        return report

    @property
    def join_bound(self) -> int:
        """Each link state once over each link and in each direction."""
        return 2 * self.links * self.endpoints


def round_trips(seconds: float) -> float:
    """Return how often a frame would go over a link and back in a time."""
    return seconds / (2 * LATENCY_S)


def measure(shape: str, endpoints: int, seed: int = 1, told: Callable[[str], None] = lambda _: None) -> Report:
    """Build a network, measure it, and return what was found.

    Raises:
        RuntimeError: It does not settle, or endpoints disagree.
    """
    rng = Random(seed)
    edges = make(shape, endpoints, seed)
    beside = neighbours(edges, endpoints)
    report = Report(shape, endpoints, len(edges), eccentricity(beside, 0))
    wanted = _receivers(endpoints, rng)
    network = Network(endpoints)
    for topic, receivers in wanted.items():
        for each in receivers:
            network.subscribe(each, topic)
    gc.disable()  # nothing here is garbage, and looking at millions of objects over and over is not what is measured
    try:
        told("join")
        _join(network, edges, report)
        told("memory")
        sample = sorted(rng.sample(range(endpoints), min(3, endpoints)))
        report.endpoint_bytes = sum(deep_bytes(network.cores[each]) for each in sample) // len(sample)
        for topic, receivers in wanted.items():
            told(f"publish to {len(receivers)}")
            report.publications.append(_publish(network, beside, topic, receivers, rng))
        for what in ("subscribe", "link cut", "link back"):
            report.changes[what] = Change()
        for _ in range(SAMPLES):
            told("change")
            _change(network, edges, rng, report)
        _agree(network)
    finally:
        gc.enable()
    report.process_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    return report


def deep_bytes(root: object) -> int:
    """Return what an object takes in memory with all that it refers to, without what is of the whole process."""
    seen = {id(root)}
    waiting = [root]
    size = 0
    while waiting:
        at = waiting.pop()
        size += sys.getsizeof(at)
        for each in gc.get_referents(at):
            if id(each) not in seen and not isinstance(each, _SHARED):
                seen.add(id(each))
                waiting.append(each)
    return size


def _receivers(endpoints: int, rng: Random) -> dict[bytes, list[int]]:
    """One, ten and a tenth of all; nobody wants two topics of which one begins with the other."""
    counts = sorted({min(count, endpoints - 1) for count in (1, 10, max(1, endpoints // 10))})
    return {b"/to-%d/" % count: sorted(rng.sample(range(endpoints), count)) for count in counts}


def _join(network: Network, edges: list[Edge], report: Report) -> None:
    began = time.process_time()
    network.connect(edges)
    report.join_s = network.settle(QUIET_S)
    report.join_cpu_s = time.process_time() - began
    report.join = dict(sorted(network.frames.items()))
    report.join_bytes = network.bytes[LINK_STATES]
    _agree(network)


def _agree(network: Network) -> None:
    wrong = network.disagreement()
    if wrong is not None:
        raise RuntimeError(wrong)


def _publish(
    network: Network, beside: list[list[int]], topic: bytes, receivers: list[int], rng: Random
) -> Publications:
    found = Publications(len(receivers))
    others = sorted(set(range(len(beside))) - set(receivers))
    for publisher in rng.sample(others, min(SAMPLES, len(others))):
        tree = tree_links(beside, publisher, receivers)
        for repeat in range(1 + REPEATS):
            before, delivered = Counter(network.frames), sum(network.delivered)
            network.publish(publisher, topic, b"%d" % repeat)
            network.finish(PUBLISHED_S)
            sent = network.frames - before
            for kind in WITH_TIME:
                del sent[kind]
            if repeat:
                found.frames += sent[MESSAGES]
                found.others += sent.total() - sent[MESSAGES]
                found.count += 1
                found.tree += tree
                found.delivered += sum(network.delivered) - delivered
            else:
                found.first += sent.total()
                found.first_tree += tree
        if not found.stream:
            found.stream, found.stream_tree = _stream(network, publisher, topic), STREAM * tree
    return found


def _stream(network: Network, publisher: int, topic: bytes) -> int:
    before = Counter(network.frames)
    for number in range(STREAM):
        network.publish(publisher, topic, b"%d" % number)
        network.run(network.now + STREAM_PAUSE_S)
    network.finish(PUBLISHED_S)
    return sum(count for kind, count in (network.frames - before).items() if kind not in WITH_TIME)


def _change(network: Network, edges: list[Edge], rng: Random, report: Report) -> None:
    """One change of each kind."""
    host, edge = rng.randrange(report.endpoints), rng.choice(edges)
    changes: dict[str, Callable[[], None]] = {
        "subscribe": lambda: network.subscribe(host, b"/new/%d" % network.frames.total()),
        "link cut": lambda: network.cut(edge),
        "link back": lambda: network.connect([edge]),
    }
    for what, make_it in changes.items():
        found = report.changes[what]
        before, began = network.frames[LINK_STATES] + network.frames[LISTS], time.process_time()
        make_it()
        found.settle_s = max(found.settle_s, network.settle(QUIET_S))
        found.cpu_s += time.process_time() - began
        found.frames += network.frames[LINK_STATES] + network.frames[LISTS] - before
        found.count += 1
