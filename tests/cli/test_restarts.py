"""Everything that keeps something on disk is killed, and then stopped, while it is written to, and starts again."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.ports import free_address, free_ports
from tests.waiting import until

from chappe import Chain, Consumer, Endpoint, OrderedProducer, Producer, SharedMap, Store, Tower
from chappe.data import binary
from chappe.log.batch import Record

PROGRAM = str(Path(__file__).with_name("restarted.py"))
WRITES = 5  # that are confirmed before and after each restart

Arguments = tuple[str, ...]
Write = Callable[[int], object]  # returns when it is confirmed


class Kept:
    """Programs that keep something, who writes to them, and what is there in the end."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.programs: dict[str, Arguments] = {}  # started in this order, restarted in this order
        self.connect: Callable[[], object]  # once they run; then the others are there
        self.write: Write
        self.found: Callable[[], set[int]]

    def open(self, made: Any) -> Any:
        return self.stack.enter_context(made)


def map_server(kept: Kept, backend: str) -> None:
    address = free_address(4)
    kept.programs["server"] = ("map", "serve", "--at", address, "--backend", backend, "--path", "map")
    kept.connect = lambda: _use_map(kept, address)


def pair_of_map_servers(kept: Kept) -> None:
    one, two, judge = free_address(4), free_address(4), free_address()
    kept.programs["witness"] = ("map", "witness", "--at", judge, "--path", "witness")
    for role, own, other in (("primary", one, two), ("backup", two, one)):
        kept.programs[role] = (
            "map", "serve", "--at", own, "--partner", other, "--role", role, "--witness", judge, "--pair", "prices",
            "--backend", "sqlite", "--path", role,
        )  # fmt: skip
    kept.programs["witness again"] = kept.programs["witness"]
    kept.connect = lambda: _use_map(kept, one, two)


def _use_map(kept: Kept, *addresses: str) -> None:
    shared = kept.open(SharedMap(*addresses, values=str, timeout=PATIENCE_S))
    kept.write = lambda number: shared.set(f"/{number}", "x", timeout=PATIENCE_S)
    kept.found = lambda: {int(key[1:]) for key in shared}


def master(kept: Kept, backend: str) -> None:
    address = free_address()
    kept.programs["master"] = ("kv", "serve", "users", "--listen", address, "--backend", backend, "--path", "users")
    kept.connect = lambda: _use_store(kept, address)


def master_on_a_chain(kept: Kept) -> None:
    _write_chain(kept)
    addresses = [free_address() for _ in "abc"]
    for name, address in zip("abc", addresses, strict=True):
        kept.programs[name] = (
            "kv", "serve", "users", "--chain", "chain.toml", "--name", name, "--directory", name, "--listen", address,
        )  # fmt: skip
    kept.connect = lambda: _use_store(kept, *addresses)


def _use_store(kept: Kept, *addresses: str) -> None:
    endpoint = kept.open(Endpoint())
    for address in addresses:
        host, _, port = address.partition(":")
        endpoint.peer(host, int(port), retry_s=0.2, timeout=PATIENCE_S)
    clone = kept.open(endpoint.attach_clone("users", timeout=PATIENCE_S, mutation_buffer_s=PATIENCE_S))
    kept.write = lambda number: clone.put(number, 1, timeout=PATIENCE_S)
    kept.found = lambda: {int(key) for key in clone if not isinstance(key, tuple)}  # those are places of bridges


def _write_chain(kept: Kept, machine: str = "") -> None:
    first = free_ports(3)
    servers = "".join(f'{name} = "127.0.0.1:{first + place}"\n' for place, name in enumerate("abc"))
    (kept.directory / "chain.toml").write_text(f'name = "orders"\n{machine}\n[servers]\n{servers}')


def chain(kept: Kept) -> None:
    _write_chain(kept)
    for name in "abc":
        kept.programs[name] = ("chain", "serve", "chain.toml", "--name", name, "--directory", name)
    kept.connect = lambda: _use_chain(kept)


def _use_chain(kept: Kept) -> None:
    client = kept.open(Chain(kept.directory / "chain.toml"))
    kept.write = lambda number: client.call(b'["put", "%d", 1]' % number, timeout=PATIENCE_S)
    kept.found = lambda: set(range(int(client.read(b'["size"]', timeout=PATIENCE_S))))


def store(kept: Kept) -> None:
    tower = kept.open(Tower("127.0.0.1:0"))
    kept.programs["store"] = ("store", "log", "--tower", tower.address)
    _use_topic(kept, tower=tower.address)


def forwarder(kept: Kept) -> None:
    address = free_address(3)
    kept.programs["forwarder"] = ("forward", "log", "--at", address)
    _use_topic(kept, forwarders=[address])


def stores_on_a_chain(kept: Kept) -> None:
    _write_chain(kept)
    tower = kept.open(Tower("127.0.0.1:0"))
    for name in "abc":
        kept.programs[name] = (
            "store", name, "--chain", "chain.toml", "--name", name, "--tower", tower.address,
        )  # fmt: skip
    kept.connect = lambda: _use_ordered(kept, tower.address)


def _use_ordered(kept: Kept, tower: str) -> None:
    ordered = OrderedProducer("numbers", chain=kept.directory / "chain.toml", timeout=PATIENCE_S)
    _write_topic(kept, kept.open(ordered), tower=tower)


def _use_topic(kept: Kept, **where: Any) -> None:
    def connect() -> None:
        producer = Producer("numbers", identity="restarts", **where)
        _write_topic(kept, kept.open(producer), **where)

    kept.connect = connect


def _write_topic(kept: Kept, producer: Any, **where: Any) -> None:
    def write(number: int) -> None:
        producer.send(b"%d" % number)
        assert producer.flush(PATIENCE_S) is not False

    kept.write = write
    kept.found = lambda: {int(record.value) for record in kept.open(Consumer("numbers", **where)).to_end(PATIENCE_S)}


def _log(kept: Kept) -> str:
    """A tower and a store that stay."""
    tower = kept.open(Tower("127.0.0.1:0"))
    kept.open(Store(kept.directory / "log", tower=tower.address))
    return str(tower.address)


def _in_one_partition(kept: Kept, tower: str) -> list[Record]:
    records = list(kept.open(Consumer("numbers", tower=tower)).to_end(PATIENCE_S))
    assert len({record.partition for record in records}) == 1
    return records


def producer(kept: Kept) -> None:
    tower = _log(kept)
    kept.programs["producer"] = (PROGRAM, "produce", tower)
    records = iter(kept.open(Consumer("numbers", tower=tower)))

    def write(number: int) -> None:
        record = next(records)
        assert (record.offset, record.value) == (number, b"%d" % number)

    kept.connect = lambda: None
    kept.write = write
    kept.found = lambda: {record.offset for record in _in_one_partition(kept, tower)}


def consumer(kept: Kept) -> None:
    tower = _log(kept)
    kept.programs["consumer"] = (PROGRAM, "consume", tower)
    writer = kept.open(Producer("numbers", tower=tower))

    def found() -> set[int]:
        return {int(line) for line in (kept.directory / "read").read_text().splitlines()}

    def write(number: int) -> None:
        writer.send(b"x")
        until(lambda: number in found(), f"record {number} is read")

    kept.connect = lambda: None
    kept.write = write
    kept.found = found


def recorder(kept: Kept) -> None:
    tower, address = _log(kept), free_address()
    kept.programs["recorder"] = ("record", "x/", "--to", "numbers", "--mesh-listen", address, "--tower", tower)
    endpoint = kept.open(Endpoint())
    seen: set[int] = set()
    consumer = kept.open(Consumer("numbers", tower=tower))

    def connect() -> None:
        host, _, port = address.partition(":")
        endpoint.peer(host, int(port), retry_s=0.2, timeout=PATIENCE_S)

    def write(number: int) -> None:
        while number not in seen:  # a recorder that is killed loses messages on their way to it
            endpoint.publish("x/n", number)
            seen.update(map(_number, consumer.poll(1.0) or ()))

    kept.connect = connect
    kept.write = write
    kept.found = lambda: set(map(_number, _in_one_partition(kept, tower)))


def _number(record: Record) -> int:
    assert record.value is not None
    return int(str(binary.decode(record.value)))


def store_to_topic(kept: Kept) -> None:
    tower, address = _log(kept), free_address()
    kept.programs["bridge"] = (PROGRAM, "to-topic", tower, address)

    def connect() -> None:
        _use_store(kept, address)
        keys = kept.found

        def found() -> set[int]:
            records = kept.open(Consumer("numbers", tower=tower))
            told: set[bytes | None] = set()

            def has_all() -> bool:
                told.update(record.key for record in records.to_end(PATIENCE_S))
                return len(told) == len(keys())

            until(has_all, lambda: f"the topic has {len(told)} keys, and the store {len(keys())}")
            return keys()

        kept.found = found

    kept.connect = connect


def topic_to_store(kept: Kept) -> None:
    tower, address = _log(kept), free_address()
    kept.programs["bridge"] = (PROGRAM, "to-store", tower, address)
    writer = kept.open(Producer("numbers", tower=tower))

    def connect() -> None:
        _use_store(kept, address)
        found = kept.found

        def write(number: int) -> None:
            writer.send(b"1", str(number))
            until(lambda: number in found(), f"the store has key {number}")

        kept.write = write

    kept.connect = connect


class Load:
    """Writes one number after the other, and knows which are confirmed."""

    def __init__(self, write: Write) -> None:
        self.confirmed = 0
        self.failed: BaseException | None = None
        self._write = write
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.wait(0.005):
                self._write(self.confirmed)
                self.confirmed += 1
        except BaseException as error:  # shown by ``goes_on``
            self.failed = error

    def goes_on(self) -> None:
        before = self.confirmed
        until(lambda: self.failed is not None or self.confirmed >= before + WRITES)
        if self.failed is not None:
            raise self.failed

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def kept(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setenv("XDG_DATA_HOME", shell.env["XDG_DATA_HOME"])  # of the producer with an identity
    with ExitStack() as stack:
        yield Kept(stack, shell.directory)


@pytest.mark.process
@pytest.mark.parametrize(
    "kind",
    [
        lambda kept: map_server(kept, "sqlite"), lambda kept: map_server(kept, "rocksdb"), pair_of_map_servers,
        lambda kept: master(kept, "sqlite"), lambda kept: master(kept, "rocksdb"), master_on_a_chain,
        chain, store, forwarder, stores_on_a_chain, producer, consumer, recorder, store_to_topic, topic_to_store,
    ],
    ids=[
        "map-sqlite", "map-rocksdb", "map-pair", "store-sqlite", "store-rocksdb", "store-chain", "chain",
        "log", "forwarder", "ordered", "producer", "consumer", "recorder", "store-to-topic", "topic-to-store",
    ],
)  # fmt: skip
def test_what_is_killed_and_stopped_under_load_starts_again_with_all_that_was_confirmed(
    kind: Callable[[Kept], None], kept: Kept, shell: Shell
) -> None:
    kind(kept)
    running: dict[Arguments, subprocess.Popen[bytes]] = {}

    def start(arguments: Arguments) -> None:
        begin = shell.python if arguments[0] == PROGRAM else shell.start
        running[arguments] = process = begin(*arguments, "--json")
        assert process.stdout is not None
        assert process.stdout.readline(), process.stderr and process.stderr.read().decode()

    for arguments in dict.fromkeys(kept.programs.values()):
        start(arguments)
    kept.connect()
    load = Load(kept.write)
    try:
        for how in (signal.SIGKILL, signal.SIGTERM):
            for arguments in kept.programs.values():
                load.goes_on()
                code = shell.stop(running.pop(arguments), how)[0]
                assert code == (-how if how == signal.SIGKILL else 0)
                start(arguments)
        load.goes_on()
    finally:
        load.end()

    assert kept.found() >= set(range(load.confirmed))
