"""A store core with a disk in memory whose writes end when the test says so."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fixed_clock import FixedClock
from tests.log.effects import jobs
from tests.log.memory_storage import MemoryLogStorage

from chappe.core import Ask, Effect, Persist, Publish
from chappe.errors import StorageError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch
from chappe.log.messages import BatchMessage, Head, RecordMessage, StoreInfo
from chappe.log.queries import Answer
from chappe.log.storage import AppendRecords, WriteRecords
from chappe.log.store import LogStore

WALL = 1_700_000_000_000_000
CLOCK = FixedClock(us=WALL)


class StoreRig:
    """The core, its storage, a clock, and the write under way."""

    def __init__(
        self, name: str = "S", storage: MemoryLogStorage | None = None, limits: LogLimits = LOG_LIMITS
    ) -> None:
        self.storage = storage or MemoryLogStorage(f"id-{name}")
        self.endpoint = f"tcp://{name}:1"
        self.now = 1000.0
        self.core = LogStore(name, self.storage, self.endpoint, now=self.now, limits=limits, clock=CLOCK)
        self.core.start(self.now)
        self.core.handle_subscription(b"DC", True, self.now)  # an original, C, listens to answers

    # -- what happens to it --

    def batch(self, base: int, *values: bytes, direct: bool = False, partition: str = "P") -> list[Effect]:
        body = encode_batch(base, values, WALL)
        message = BatchMessage(self.core.address if direct else "hello", partition, "hello", body, direct)
        return self.core.handle_message(message, self.now)

    def record(self, sequence: int, content: bytes, *, direct: bool = False) -> list[Effect]:
        message = RecordMessage("hello", "P", "hello", sequence, content, direct)
        return self.core.handle_message(message, self.now)

    def head(self, sequence: int, partition: str = "P") -> list[Effect]:
        return self.core.handle_message(Head("hello", partition, "hello", sequence), self.now)

    def subscribe(self, *prefixes: bytes) -> list[Effect]:
        return [each for prefix in prefixes for each in self.core.handle_subscription(prefix, True, self.now)]

    def meet(self, other: StoreRig) -> list[Effect]:
        info = StoreInfo("", other.core.address, other.storage.store_id, other.endpoint)
        return self.core.handle_message(info, self.now)

    def answer(self, ask: Ask, answer: Answer, *batches: bytes) -> list[Effect]:
        return self.core.handle_answer(ask.ticket, answer, list(batches), self.now)

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, timeout by timeout."""
        end = self.now + seconds
        actions: list[Effect] = []
        for _ in range(10_000):
            due = self.core.next_timeout()
            if due > end:
                self.now = end
                return actions
            self.now = max(self.now, due)
            actions += self.core.handle_timeout(self.now)
        raise AssertionError("it wants to be called again and again without time passing")

    # -- the disk --

    def written(self, actions: Sequence[Effect]) -> list[Effect]:
        """Carry out the one write among ``actions``."""
        (write,) = writes(actions)
        return self.finish(write)

    def finish(self, write: WriteRecords) -> list[Effect]:
        try:
            done = self.storage.write(write.appends)
        except StorageError as error:
            return self.core.handle_done(write, error, self.now)
        self.storage.publish(done)
        return self.core.handle_done(write, None, self.now)

    def settle(self, actions: Sequence[Effect]) -> list[Effect]:
        """Carry out writes until none is wanted; returns everything else."""
        rest: list[Effect] = [
            each for each in actions if not (isinstance(each, Persist) and isinstance(each.job, WriteRecords))
        ]
        for write in writes(actions):
            rest += self.settle(self.finish(write))
        return rest

    def keep(self, base: int, *values: bytes, partition: str = "P", topic: str = "hello", heal: bool = False) -> None:
        """Put records on its disk behind its back."""
        body = encode_batch(base, values, WALL)
        self.storage.publish(
            self.storage.write([AppendRecords(topic, partition, base, len(values), WALL, WALL, body, heal)])
        )

    def contents(self, partition: str = "P", topic: str = "hello") -> list[tuple[int, bytes | None]]:
        """Offset and value of everything readable."""
        info = self.storage.partition(topic, partition)
        found: list[tuple[int, bytes | None]] = []
        at = 0 if info is None else info.first
        while info is not None and at < info.next:
            read = self.storage.read(topic, partition, at, 1 << 20)
            if not read.batches:
                assert read.hole is not None
                at = read.hole.last + 1
                continue
            for raw in read.batches:
                found += [(r.offset, r.value) for r in Batch.parse(raw).records(topic, partition, at)]
                at = found[-1][0] + 1
        return found


def writes(actions: Sequence[Effect]) -> list[WriteRecords]:
    return jobs(actions, WriteRecords)


def asks(actions: Sequence[Effect]) -> list[Ask]:
    return [each for each in actions if isinstance(each, Ask)]


def published(actions: Sequence[Effect]) -> list[object]:
    return [each.message for each in actions if isinstance(each, Publish)]
