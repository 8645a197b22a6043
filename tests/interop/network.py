"""A small network of original and our own members, on loopback."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from tests.interop.originals import PATIENCE_S, Program, eventually, settle
from tests.ports import free_ports

from chappe import Consumer, Producer, Record, Store, Tower
from chappe.api.identity import new_address
from chappe.core import Effect, Subscribe
from chappe.log.messages import Message
from chappe.log.queries import Answer
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.meeting import AtTowers
from chappe.transports.addresses import TowerAddress
from chappe.transports.queries import StoreClient


class Witness:
    """A member that looks on: it sees what each peer subscribes to, and the messages that it is told to want.

    Args:
        tower: Where the others are found.
        ids: The kinds of message wanted. Not M and R: publishers would take it for a listener.
    """

    def __init__(self, tower: str, ids: str = "") -> None:
        self.address = new_address()
        self.prefixes: Counter[bytes] = Counter()
        self.messages: list[Message] = []
        self._gone = 0
        self._wanted = [each.encode() for each in ids]
        self._node = LogPorts(self, AtTowers(TowerAddress.parse_many(tower), "127.0.0.1"), on_report=lambda event: None)
        self._node.start()

    def start(self, now: float) -> list[Effect]:
        return [Subscribe(each) for each in self._wanted]

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        if on:
            self.prefixes[prefix] += 1
        return []

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        self.messages.append(message)
        return []

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        self._gone += 1
        return []

    @property
    def paused(self) -> bool:
        return False

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        return []

    def flush(self, now: float) -> list[Effect]:
        return []

    def handle_timeout(self, now: float) -> list[Effect]:
        return []

    def next_timeout(self) -> float:
        return float("inf")

    def count(self, prefix: bytes) -> int:
        """How many subscriptions that begin so were made by peers, those that ended included."""
        with self._node.driver.lock:
            return sum(count for each, count in self.prefixes.items() if each.startswith(prefix))

    @property
    def heard(self) -> int:
        """How many members were ever heard of; a tower tells everybody of a member at the same time."""
        with self._node.driver.lock:
            return self._node.discovery.peers + self._gone

    def close(self) -> None:
        self._node.driver.close()


class Network:
    """A tower and the members that a test adds; everything ends with it."""

    def __init__(self, programs: Path, directory: Path, stack: ExitStack) -> None:
        self._programs = programs
        self._directory = directory
        self._stack = stack
        self._witness: Witness | None = None
        self._nodes: set[LogPorts] = set()
        self.tower = ""
        (directory / "node.cfg").write_text('beacon\n    address = "127.0.0.1"\n')

    # -- towers -----------------------------------------------------------------------------------------

    def start_tower(self) -> Tower:
        """Our tower, for the members started from now on."""
        tower = self._stack.enter_context(Tower("127.0.0.1:0"))
        self.tower = tower.address
        return tower

    def start_original_tower(self) -> Program:
        """An original tower, for the members started from now on. It needs an interface other than loopback."""
        sub, pub = free_ports(), free_ports()
        self.tower = f"127.0.0.1:{sub}:{pub}"
        program = self._run("dafka_towerd")
        eventually(lambda: not program.running or (_accepts(sub) and _accepts(pub)), "the original tower accepts")
        assert program.running, "the original tower ended: has this machine no network interface but loopback?"
        return program

    @property
    def witness(self) -> Witness:
        """The witness of this network, from the first use on."""
        if self._witness is None:
            self._witness = self.new_witness()
        return self._witness

    def new_witness(self, ids: str = "") -> Witness:
        """A further witness, which also hears all messages of some kinds."""
        witness = Witness(self.tower, ids)
        self._stack.callback(witness.close)
        return witness

    # -- originals ----------------------------------------------------------------------------------------

    def original_store(self, name: str = "original") -> Program:
        """An original store in the directory ``name``."""
        with self._joining(b"W", members=2):
            return self.store_alone(name)

    def store_alone(self, name: str) -> Program:
        """As ``original_store``; nobody waits for it."""
        config = self._directory / f"{name}.cfg"
        config.write_text(f'beacon\n    address = "127.0.0.1"\nstore\n    db = "{self._directory / name}"\n')
        return self._run("dafka_stored", "-c", str(config))

    def original_producer(self, topic: str) -> Program:
        """An original console producer; every line sent to it is a record."""
        with self._joining(b"K"):
            return self._run("dafka_console_producer", topic, "-c", str(self._directory / "node.cfg"))

    def original_consumer(self, topic: str, *, from_beginning: bool = False) -> Program:
        """An original console consumer that has subscribed."""
        more = ["--from-beginning"] if from_beginning else []
        with self._joining(b"M" + topic.encode()):
            return self._run("dafka_console_consumer", topic, "-c", str(self._directory / "node.cfg"), *more)

    def alone(self, name: str, *options: str) -> Program:
        """A program that nobody waits for; ``tower`` need not be a tower that makes members known to each other."""
        return self._run(name, *options, "-c", str(self._directory / "node.cfg"))

    def _run(self, name: str, *options: str) -> Program:
        towers = TowerAddress.parse_many(self.tower)
        pub = ",".join([f"tcp://{each.host}:{each.pub_port}" for each in towers])
        ports = ("--pub", pub, "--sub", ",".join([f"tcp://{each.host}:{each.sub_port}" for each in towers]))
        program = Program([str(self._programs / name), *options, *ports], self._directory)
        self._stack.callback(program.kill)
        return program

    # -- ours -------------------------------------------------------------------------------------------------

    def store(self, name: str = "ours") -> Store:
        """Our store in the directory ``name``."""
        with self._joining(b"W"):
            return self._stack.enter_context(Store(self._directory / name, tower=self.tower))

    def producer(self, topic: str, *, min_acks: int = 1) -> Producer:
        """Our producer; at the end it is closed without waiting for acknowledgements."""
        with self._joining(b"K") as nodes:
            producer = Producer(topic, tower=self.tower, min_acks=min_acks)
            nodes.append(producer._node.node)
        self._stack.callback(producer.__exit__, KeyboardInterrupt, None, None)
        return producer

    def consumer(self, *topics: str, reset: Literal["earliest", "latest"] = "earliest") -> Consumer:
        """Our consumer."""
        with self._joining(b"L") as nodes:
            consumer = self._stack.enter_context(Consumer(*topics, tower=self.tower, reset=reset))
            nodes.append(consumer._node.node)
        return consumer

    @contextmanager
    def _joining(self, prefix: bytes, members: int = 1) -> Iterator[list[LogPorts]]:
        """Wait until the witness is connected with a new member in both directions, and so are probably the others.

        Of ours the node is appended to what this yields: one that another member has made is connected already.
        """
        count, heard, nodes = self.witness.count(prefix), self.witness.heard, list[LogPorts]()
        yield nodes
        if not self._nodes.issuperset(nodes) or not nodes:
            eventually(lambda: self.witness.count(prefix) > count, f"a new member subscribes to {prefix!r}")
            eventually(lambda: self.witness.heard >= heard + members, "a new member is heard of")
        self._nodes.update(nodes)
        settle()


def wait_for_listener(producer: Producer, prefix: bytes, count: int = 1) -> None:
    """Wait until so many peers subscribed to what our producer publishes: from then on they hear everything."""
    counts = producer._core.subscriptions._counts
    eventually(lambda: counts.get(prefix, 0) >= count, f"{count} listeners to {prefix!r}")


def take(consumer: Consumer, count: int, timeout: float = PATIENCE_S) -> list[Record]:
    """So many records, or as many as come in time."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout
    while len(records) < count and (left := deadline - time.monotonic()) > 0:
        batch = consumer.poll(left)
        records += batch or ()
    return records


def silent(consumer: Consumer, seconds: float = 1.5) -> bool:
    """Whether nothing more comes, over more than one interval of HEAD."""
    return consumer.poll(seconds) is None


def wait_until_stored(store: Store, topic: str, records: int, timeout: float = PATIENCE_S) -> None:
    """Wait until our store has so many records of a topic, in all its partitions together."""
    client = StoreClient(store.endpoint)
    try:
        eventually(
            lambda: sum(info.next - info.first for info in client.heads(topic)[0]) >= records,
            f"{records} records in our store",
            timeout,
        )
    finally:
        client.close()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
