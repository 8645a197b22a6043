"""A consumer core with a clock, that remembers what was delivered, and stores that answer it or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tests.fixed_clock import FixedClock
from tests.log.store_rig import WALL, StoreRig

from chappe.core import Ask, Deliver, Effect, Publish, Reply, Report
from chappe.data.topic import Filter
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import encode_batch
from chappe.log.consumer import LogConsumer, Reset
from chappe.log.messages import BatchMessage, Head, RecordMessage, StoreInfo
from chappe.log.queries import Answer, ReadRequest
from chappe.log.sources import Key

CLOCK = FixedClock(us=WALL)


class Clocked:
    """A consumer core with a clock, whatever becomes of its actions."""

    now: float
    core: LogConsumer

    def do(self, actions: Sequence[Effect]) -> None:
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Let time pass, timeout by timeout."""
        end = self.now + seconds
        for _ in range(10_000):
            due = self.core.next_timeout()
            if due > end:
                self.now = end
                return
            self.now = max(self.now, due)
            self.do(self.core.handle_timeout(self.now))
            if self.core.next_timeout() <= self.now:
                self.now += 0.001
        raise AssertionError("it wants to be called again and again without time passing")


class ConsumerRig(Clocked):
    """Everything that the core wants done ends here: ``delivered``, ``events`` and ``published``."""

    def __init__(
        self,
        reset: Reset,
        *topics: str,
        positions: dict[Key, int] | None = None,
        limits: LogLimits = LOG_LIMITS,
        min_acks: int = 0,
    ) -> None:
        self.now = 1000.0
        filters = [Filter.parse(each) for each in topics or ("hello",)]
        self.core = LogConsumer("C", filters, reset, positions, limits, min_acks=min_acks, clock=CLOCK)
        self.stores: dict[str, StoreRig] = {}
        self.deaf: set[str] = set()  # endpoints of stores that do not answer
        self.late: list[Ask] | None = None  # not None: questions are kept here instead of answered
        self.refusal: Answer | None = None  # what stores answer to READ
        self.delivered: list[tuple[str, str, int, bytes | None]] = []
        self.events: list[object] = []
        self.published: list[object] = []
        self.asked: list[Ask] = []
        self._todo: deque[Effect] = deque()
        self._doing = False
        self.start_actions = self.core.start(self.now)
        self.do(self.start_actions)

    # -- what happens to it --

    def batch(
        self, base: int, *values: bytes, direct: bool = False, partition: str = "P", topic: str = "hello"
    ) -> None:
        message = BatchMessage("C" if direct else topic, partition, topic, encode_batch(base, values, WALL), direct)
        self.do(self.core.handle_message(message, self.now))

    def record(self, sequence: int, content: bytes, *, direct: bool = False) -> None:
        message = RecordMessage("C" if direct else "hello", "P", "hello", sequence, content, direct)
        self.do(self.core.handle_message(message, self.now))
        self.do(self.core.flush(self.now))

    def head(self, sequence: int, *, direct: bool = False) -> None:
        self.do(self.core.handle_message(Head("C" if direct else "hello", "P", "hello", sequence, direct), self.now))

    def meet(self, store: StoreRig) -> None:
        self.stores[store.endpoint] = store
        info = StoreInfo("", store.core.address, store.storage.store_id, store.endpoint)
        self.do(self.core.handle_message(info, self.now))

    def lose(self, store: StoreRig) -> None:
        del self.stores[store.endpoint]
        self.do(self.core.handle_gone(store.core.address, self.now))

    # -- what it wants --

    def do(self, actions: Sequence[Effect]) -> None:
        self._todo += actions
        if not self._doing:
            self._doing = True
            while self._todo:
                self._do(self._todo.popleft())
            self._doing = False

    def _do(self, action: Effect) -> None:
        if isinstance(action, Deliver):
            records = action.messages.batch.records(
                action.messages.topic, action.messages.partition, action.messages.start
            )
            self.delivered += [(r.topic, r.partition, r.offset, r.value) for r in records]
            self.do(self.core.taken(len(action.messages.batch.raw), self.now))
        elif isinstance(action, Report):
            self.events.append(action.event)
        elif isinstance(action, Publish):
            self.published.append(action.message)
        elif isinstance(action, Ask):
            self.asked.append(action)
            self.answer(action)

    def answer(self, ask: Ask) -> None:
        if self.late is not None:
            self.late.append(ask)
        elif self.refusal is not None and isinstance(ask.request, ReadRequest):
            self.do(self.core.handle_answer(ask.ticket, self.refusal, [], self.now))
        else:
            self.reply_to(ask)

    def reply_to(self, ask: Ask) -> None:
        """Have the store answer, if there is one that hears."""
        store = self.stores.get(ask.to)
        if store is None or ask.to in self.deaf:
            return
        reply, *_ = store.core.handle_request(b"", b"12345678", ask.request, b"", self.now)
        assert isinstance(reply, Reply)
        self.do(self.core.handle_answer(ask.ticket, reply.message.answer, list(reply.message.batches), self.now))

    def values(self, partition: str = "P") -> list[bytes | None]:
        return [value for _, name, _, value in self.delivered if name == partition]

    def offsets(self, partition: str = "P") -> list[int]:
        return [offset for _, name, offset, _ in self.delivered if name == partition]
