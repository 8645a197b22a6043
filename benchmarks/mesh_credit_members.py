"""The processes of ``mesh_credit``: ``python -m benchmarks.mesh_credit_members ROLE OPTIONS``, driven as ``link`` says.

All end with what became of their messages and links. Topic A has a slow subscriber, topic B only fast ones.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.link import RECORD_BYTES, Sequence, orders, say, sips, tether
from chappe import Endpoint, Subscriber, Tls
from chappe.data.scalars import Count
from chappe.mesh.events import LinkEnded, LostElsewhere, MessagesDropped

A, B, BACK = "/slow", "/fast", "/back"
HOST = "127.0.0.1"
TEXT = "x" * RECORD_BYTES
BATCH = 256
SILENCE_S = 60.0  # who gets nothing for so long gives up
LOOK_S = 0.05
CONFIRMED = 250  # messages of an original that are confirmed together
Options = dict[str, Any]


class Member:
    """An endpoint that counts what it hears and what waits."""

    def __init__(self, options: Options) -> None:
        keys = options.get("keys")
        security = None if keys is None else Tls.of(keys, "endpoint", check="authority")
        self.endpoint = Endpoint(security=security, on_full=options.get("on_full", "block"))
        self._links_lost = self._dropped = self._told = self._waited = 0
        self.told: list[str] = []
        self.endpoint.statuses(callback=self._hear)
        threading.Thread(target=self._look, daemon=True).start()

    def join(self, options: Options) -> None:
        """Listen, peer, and say where it can be found; what it subscribes to before is known with it."""
        for port in options.get("ports", ()):
            self.endpoint.peer(HOST, port, timeout=SILENCE_S)
        say(port=self.endpoint.listen(HOST), id=self.endpoint.id)

    def _hear(self, event: object) -> None:
        if isinstance(event, LinkEnded):
            self._links_lost += 1
        elif isinstance(event, MessagesDropped):
            self._dropped += event.count
        elif isinstance(event, LostElsewhere):
            self._told += event.count
        else:
            return
        self.told = [*self.told, str(event)][-5:]

    def _look(self) -> None:
        while True:
            self._waited = max(self._waited, self.endpoint.buffered)
            time.sleep(LOOK_S)

    def facts(self) -> dict[str, Any]:
        """What became of its links, and the most memory that it took."""
        [peak] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
        counts = {"links_lost": self._links_lost, "dropped": self._dropped, "told": self._told}
        return {**counts, "waited": self._waited, "mib": int(peak.split()[1]) / 1024, "events": self.told}


def _thread(do: Callable[..., None], *args: object) -> threading.Thread:
    made = threading.Thread(target=do, args=args, daemon=True)
    made.start()
    return made


class Slow:
    """Takes ``rate`` messages of A a second, until it is told to take all that is left."""

    def __init__(self, member: Member, options: Options) -> None:
        self.came = Sequence()
        self._options = options
        self._publish = member.endpoint.publish
        bounds = {"messages_max": options["messages_max"]} if "messages_max" in options else {}
        self._subscriber = member.endpoint.subscribe(A, on_full=options.get("reads", "block"), **bounds)
        self._until: int | None = None
        self._rate = 0.0
        self._most = 0
        self._thread = _thread(self._run)

    def finish(self, until: int) -> dict[str, Any]:
        """Take everything up to this number."""
        self._until = until
        self._thread.join()
        return {**self.came.facts(), "rate": self._rate, "waited_here": self._most}

    def _run(self) -> None:
        began = time.monotonic()
        for _ in sips(self._options["rate"]):
            if self._until is not None:
                break
            self._take(1.0)
            if self.came.taken <= 1:
                began = time.monotonic()
        self._rate = self.came.taken / (time.monotonic() - began)
        while self.came.next < (self._until or 0) and self._take(SILENCE_S):
            pass

    def _take(self, timeout_s: float) -> bool:
        received = self._subscriber.get(timeout_s)
        if received is None:
            return False
        if received.value is None:  # an original asks whether somebody is there
            self._publish(BACK, Count(0))
            return True
        self.came.take(received.value[0])
        if self.came.taken % CONFIRMED == 0:
            if self._options.get("confirms"):
                self._publish(BACK, Count(self.came.taken))
            self._most = max(self._most, self._subscriber.available)
        return True


class Fast:
    """Takes all messages of B, and remembers the worst delay against their pace."""

    def __init__(self, member: Member) -> None:
        self.came = Sequence()
        self._worst_ns = 0
        self._subscriber = member.endpoint.subscribe(B, on_full="block")
        self._thread = _thread(self._run, self._subscriber)

    def finish(self, until: int) -> dict[str, Any]:
        """Take everything up to this number."""
        deadline = time.monotonic() + SILENCE_S
        while self.came.next < until and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        facts = {f"b_{name}": count for name, count in self.came.facts().items()}
        return {**facts, "b_worst_ms": self._worst_ns / 1e6}

    def _run(self, subscriber: Subscriber) -> None:
        for received in subscriber:
            number, due_ns = received.value
            self._worst_ns = max(self._worst_ns, time.monotonic_ns() - due_ns)
            self.came.take(number)


def receiver(options: Options) -> None:
    """Takes B, and A slowly if it has a ``rate``. Order ``a`` and ``b``: take all before these numbers."""
    member = Member(options)
    slow = Slow(member, options) if "rate" in options else None
    fast = Fast(member)
    member.join(options)
    for order in orders():
        facts = {} if slow is None else slow.finish(order["a"])
        say(**facts, **fast.finish(order["b"]), **member.facts())


def forwarder(options: Options) -> None:
    """Passes messages on."""
    member = Member(options)
    member.join(options)
    for _ in orders():
        say(**member.facts())


def publisher(options: Options) -> None:
    """Order ``seconds``: publish A for so long, all that it can or ``a_rate`` a second, and B at its pace."""
    member = Member(options)
    member.join(options)
    [order] = islice(orders(), 1)
    for each in order["ids"]:
        if not member.endpoint.await_peer(each, SILENCE_S):
            sys.exit(f"{each} is not there")
    wanted = {each.encode() for each in ([A] if order["a"] else []) + [B]}
    if not member.endpoint.node.turns.wait(lambda: wanted <= set(member.endpoint.core.peer_subscriptions()), SILENCE_S):
        sys.exit("nobody subscribes")
    until = time.monotonic() + order["seconds"]
    counts = {A: 0, B: 0}
    paced = _thread(_publish_paced, member.endpoint, order["b_rate"], until, counts)
    if order["a"]:
        _publish_all(member.endpoint, options.get("a_rate"), until, counts)
    paced.join()
    say(a=counts[A], b=counts[B])
    for _ in orders():
        say(**member.facts())


def _publish_all(endpoint: Endpoint, rate: float | None, until: float, counts: dict[str, int]) -> None:
    for _ in sips(1e12 if rate is None else rate / BATCH):
        if time.monotonic() >= until:
            break
        first = counts[A]
        endpoint.publish_batch([(A, [Count(first + each), TEXT]) for each in range(BATCH)])
        counts[A] += BATCH


def _publish_paced(endpoint: Endpoint, rate: float, until: float, counts: dict[str, int]) -> None:
    due_ns = time.monotonic_ns()
    while time.monotonic() < until:
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        endpoint.publish(B, [Count(counts[B]), due_ns])
        counts[B] += 1
        due_ns += int(1e9 / rate)


ROLES: dict[str, Callable[[Options], None]] = {each.__name__: each for each in (receiver, forwarder, publisher)}

if __name__ == "__main__":
    tether()
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
