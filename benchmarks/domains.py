"""100 domains of 1,000 endpoints, joined by gateways: ``python -m benchmarks.domains [--domains N] [--endpoints N]``.

The cores of the gateways are those of programs, on the simulator's clock; the insides of the domains are stand-ins that
count what each mesh would deliver. Times are virtual but for the processor's.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random

from tests.worlds.gateway_domains import Domain
from tests.worlds.gateways import Copies, GatewayHost, GatewayWorld, Joint, Tree

from chappe.mesh.filters import matches

PUBLICATIONS = 300
SUBJECTS = 40  # prefixes ...
COMMON = 4  # ... of which some are wanted in all domains
ALL = ((b"/",), (b"/",))


class Many(GatewayWorld):
    """Many domains, with nothing wrong but what ``fail`` does."""

    events_max = 10**9
    settle_max_s = 120.0

    def __init__(self, shape: str, domains: int, endpoints: int) -> None:
        super().__init__(1)
        self.copies, self.tree = Copies(self), Tree(self)
        self.watch(self.copies, self.tree)
        self.shape = shape
        for number in range(domains):
            domain = self.domains[f"d{number:03}"] = Domain(self, f"d{number:03}")
            domain.delays = (0.005, 0.02)
            for _ in range(endpoints):
                domain.subscribe(self.rng.randbytes(16), self._wishes(number))

    def _wishes(self, domain: int) -> tuple[bytes, ...]:
        """One endpoint in ten wants a subject of all domains, one in two some of its neighbourhood."""
        near = [COMMON + (domain // 10 * 4 + each) % (SUBJECTS - COMMON) for each in self.rng.sample(range(6), 2)]
        found = near if self.rng.random() < 0.5 else []
        found += [self.rng.randrange(COMMON)] if self.rng.random() < 0.1 else []
        return tuple([b"/%02d/" % each for each in found])

    def links(self) -> list[tuple[str, str]]:
        """Pairs of domains, each of which gets two gateways."""
        names, draw = list(self.domains), Random(self.shape)
        if self.shape == "ring":
            return [*pairwise(names), (names[-1], names[0])]
        if self.shape == "star":
            return [(names[0], each) for each in names[1:]]
        found = {(draw.choice(names[:at]), name) for at, name in enumerate(names) if at}
        while len(found) < 3 * len(names) // 2:
            one, two = sorted(draw.sample(names, 2))
            found.add((one, two))
        return sorted(found)

    def begin(self) -> None:
        """Begin with all gateways within a second."""
        for one, two in self.links():
            for joint in (Joint((one, two), ALL), Joint((two, one), ALL)):
                self.clock.after(self.rng.random(), self._begin, joint)

    def _begin(self, joint: Joint) -> None:
        self.join("g", lambda name: GatewayHost(self, name, joint))

    def settled(self) -> float:
        """Let time pass until the gateways make a tree; returns the seconds."""
        began, good = self.now, None
        while good is None or self.now - good < 2.0:
            self.pass_time(self.now + 0.05)
            wrong = self.tree.unsettled()
            good = None if wrong is not None else self.now if good is None else good
            if self.now - began > self.settle_max_s:
                raise RuntimeError(wrong)
        return good - began


def measured(call: Callable[[], float]) -> tuple[float, float]:
    """What a call returns, and the processor time that it took."""
    began = time.process_time()
    return call(), time.process_time() - began


def play(shape: str, domains: int, endpoints: int) -> None:
    """Report one shape."""
    world = Many(shape, domains, endpoints)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    world.begin()
    world.pass_time(1.1)
    settle_s, cpu_s = measured(world.settled)
    hosts = world.gateways()
    passing = sum(host.core.passing for host in hosts)
    kept = sum(_size(host) for host in hosts)
    del kept
    memory = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    print(f"\n{shape}: {domains} domains of {endpoints:,} endpoints, {len(hosts)} gateways, of which {passing} pass")
    print(f"  a tree after {settle_s:.2f} s; {cpu_s / len(hosts) * 1000:.0f} ms of a processor for each gateway;")
    print(f"  {memory / len(hosts) / 1024:.0f} KiB for each, {endpoints:,} endpoints in view on each side")

    subjects = [b"/%02d/x" % each for each in range(SUBJECTS)]
    for domain in world.domains.values():
        domain.frames = domain.marked = 0
    sent, cpu_s = 0, time.process_time()
    names = list(world.domains.values())
    for _ in range(PUBLICATIONS):
        world.publish(world.rng.choice(names), world.rng.choice(subjects))
        sent += 1
        world.pass_time(world.now + 0.01)
    world.pass_time(world.now + 10.0)
    cpu_s = time.process_time() - cpu_s
    got = sum(found.total() for found in world.copies.got.values())
    frames, marked = sum(d.frames for d in names), sum(d.marked for d in names)
    for payload, (name, topic) in world.sent.items():
        found: Mapping[bytes, int] = world.copies.got.get(payload, {})
        wanting = {each for domain in names for each, wanted in domain.subscribers.items() if matches(wanted, topic)}
        lacking = wanting - set(found)
        assert len(lacking) <= 1, f"{len(lacking)} endpoints lack what {name} published to {topic!r}"
    print(f"  {sent} publications, {got / sent:.1f} subscribers of each, {frames / sent:.1f} deliveries for each:")
    between = frames - got - marked
    print(
        f"  {between / sent:.1f} to gateways and {marked / sent:.1f} more with marks; {world.copies.twice} came twice;"
    )
    print(f"  {cpu_s / sent * 1000:.1f} ms of a processor for each in all of the world")

    took = sorted([_takeover(world, False) for _ in range(5)])
    root = _takeover(world, True)
    print(f"  one that passes dies: the tree is whole after {took[2]:.3f} s (median of 5), at most {took[-1]:.3f} s,")
    print(f"  {root:.3f} s if it was the root; news take 5 to 20 ms in a domain")


def _takeover(world: Many, root: bool) -> float:
    """Kill one that passes; returns how long it takes until all domains are joined again."""
    victims = []
    for member in world.members:
        host = member.host
        if isinstance(host, GatewayHost) and host.alive and host.core.passing and host.core.place is not None:
            victims += [member] if (host.core.place.up is None) is root else []
    victim = world.rng.choice(victims)
    victim.crash()
    began = broken = world.now
    while world.now < began + 1.5:
        world.pass_time(world.now + 0.005, 0.005)
        if world.tree.unsettled() is not None:
            broken = world.now
    victim.restart()
    world.pass_time(world.now + 5.0)
    return broken - began


def _size(host: GatewayHost) -> int:
    return sum(len(port.view) for port in host.ports)


def main() -> None:
    """Play all shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domains", type=int, default=100)
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--shape", choices=("ring", "star", "random"), action="append")
    options = parser.parse_args()
    for shape in options.shape or ("ring", "star", "random"):
        play(shape, options.domains, options.endpoints)


if __name__ == "__main__":
    main()
