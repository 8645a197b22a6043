"""A sender and a receiver, measured over several rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import zmq

from benchmarks.children import Child, Children
from benchmarks.outcome import Rate

WARM_UP = 20_000  # records; fewer bytes than a producer keeps for those who missed them


@dataclass(frozen=True, slots=True)
class Together:
    """Several receivers of the same, as if they were one: it has everything when the last of them has."""

    members: list[Child]

    def order(self, **what: object) -> None:
        """Send an order to each."""
        for each in self.members:
            each.order(**what)

    def hear(self) -> dict[str, Any]:
        """When the first began and the last ended, and the processor time of all."""
        facts = [each.hear() for each in self.members]
        return {
            "start": min(each["start"] for each in facts),
            "end": max(each["end"] for each in facts),
            "cpu_s": sum(each["cpu_s"] for each in facts),
        }


@dataclass(slots=True)
class Pair:
    """Two processes that understand ``count``, and servers between them whose processor time counts too.

    Args:
        durable: A round ends when the sender's confirmation is there and the receiver has everything; otherwise
            when the receiver has everything.
    """

    sender: Child
    receiver: Child | Together
    servers: dict[str, Child] = field(default_factory=dict)
    durable: bool = False
    _rates: list[float] = field(default_factory=list)
    _cpu_us: list[dict[str, float]] = field(default_factory=list)

    def warm_up(self, count: int = WARM_UP) -> None:
        """A round that is not counted."""
        self._round(count)

    def round(self, count: int) -> None:
        """A round that is counted."""
        before = {name: child.cpu_s() for name, child in self.servers.items()}
        sent, received = self._round(count)
        end = max(received["end"], sent["end"]) if self.durable else received["end"]
        self._rates.append(count / ((end - sent["start"]) / 1e9))
        cpu_s = {"sender": sent["cpu_s"], "receiver": received["cpu_s"]}
        cpu_s |= {name: child.cpu_s() - before[name] for name, child in self.servers.items()}
        self._cpu_us.append({name: 1e6 * seconds / count for name, seconds in cpu_s.items()})

    def rate(self) -> Rate:
        """What the rounds gave."""
        middle = sorted(range(len(self._rates)), key=self._rates.__getitem__)[len(self._rates) // 2]
        return Rate(tuple(self._rates), self._cpu_us[middle])

    def _round(self, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self.receiver.order(count=count)
        sent = self.sender.ask(count=count)
        return sent, self.receiver.hear()


def raw_pair(children: Children, *, single: bool, curve: bool = False) -> Pair:
    """ZeroMQ's PUB and SUB from Python, with nothing else; ``curve``: with its own encryption."""
    keys = [zmq.curve_keypair() for _ in range(2)] if curve else []
    pairs = [[each.decode() for each in pair] for pair in keys]
    sender = children.raw("publisher", single=single, curve=pairs)
    receiver = children.raw("subscriber", single=single, curve=pairs, endpoint=sender.hear()["endpoint"])
    receiver.hear()
    sender.hear()
    return Pair(sender, receiver)


def raw_proxied(children: Children) -> Pair:
    """The same in frames, through ZeroMQ's own proxy."""
    sender = children.raw("publisher", single=False)
    proxy = children.raw("proxy", single=False, endpoint=sender.hear()["endpoint"])
    receiver = children.raw("subscriber", single=False, endpoint=proxy.hear()["endpoint"])
    receiver.hear()
    sender.hear()
    return Pair(sender, receiver, {"proxy": proxy})


def tower(children: Children) -> str:
    """A new tower's address."""
    address: str = children.member("tower").hear()["tower"]
    return address
