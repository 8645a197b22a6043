"""The consumers of one node: who of them wants a topic, who keeps up, and who asks stores what is new."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from chappe.core import Ask, Effect, Publish, Subscribe
from chappe.data.topic import Filter, encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import FULL_PEER_WAIT_LIVE_S, POLL_HEADS_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch
from chappe.log.beacon import CONSUMING, REPLAY_S, kind_of
from chappe.log.consumer import LogConsumer
from chappe.log.member import REQUESTS, Carrying
from chappe.log.messages import (
    BatchMessage,
    ClockTold,
    GetHeads,
    Head,
    Message,
    OnDisk,
    RecordMessage,
    StoreHello,
    StoreInfo,
    address_in,
)
from chappe.log.queries import Answer, HeadsAnswer, HeadsRequest
from chappe.log.sources import ANSWER_S, Inquiries

MATCHING_MAX: Final = 10_000  # topics whose consumers are remembered
INQUIRY_PAUSE_S: Final = 2.0  # between two questions to original stores
ASKED_APART_MAX: Final = 16  # filters to ask for one by one; with more, only their common prefix is asked for


@dataclass(slots=True)
class _News:
    """A question whether a store has news, for consumers that do not ask it themselves."""

    version: int  # up to which each of them knows all that concerns it
    asked: tuple[int, int, float] | None = None  # a question under way: its number, since which version, when


class ConsumingMember(Carrying[LogConsumer]):
    """Carries consumers; no other node has its ``name``.

    One whose application does not keep up is not handed more. Alone in its node it leaves messages in the queue, and
    whoever sends them waits as for every full peer. Beside others it only notes how far partitions go, and reads from
    stores later what it let pass; if it knows no store, the others wait for it a little first.

    A consumer asks every store once a second what is new. Where there are many, the node asks for all: those who want
    what is new then ask for themselves, as do all if the answer is long, or does not come. The node also asks original
    stores when a member has gone (``Inquiries``), in the name of any consumer, and hands the answers to all.
    """

    def __init__(self, name: str, limits: LogLimits = LOG_LIMITS) -> None:
        super().__init__(CONSUMING + name)
        self._stores_max = limits.stores_max
        self._apart_max = limits.apart_max
        self._exact: dict[str, dict[str, LogConsumer]] = {}  # by the topic that they want
        self._named: dict[str, dict[str, None]] = {}  # under which topics one is found there
        self._prefixed: dict[str, LogConsumer] = {}  # those that want topics by their beginning
        self._matching: dict[str, list[str]] = {}  # who wants a topic, as found before
        self._stores: dict[str, StoreInfo] = {}  # what a consumer that comes later is told
        self._listening: dict[bytes, int] = {}  # likewise: subscriptions of stores of the original
        self._paused: dict[str, None] = {}
        self._waited_for: Deadlines[str] = Deadlines()  # paused ones, and until when the others wait
        self._gathering: dict[str, LogConsumer] = {}  # consumers with single records to deliver
        self._news: dict[str, _News] = {}  # by store
        self._polls: Deadlines[str] = Deadlines()  # when a store is to be asked, or should have answered
        self._asked = 0  # how many questions the node itself asked
        self._common: bytes | None = b""  # how all wanted topics begin; None: to be found out
        self._inquiries = Inquiries(INQUIRY_PAUSE_S)

    # -- the parts ------------------------------------------------------------------------------------

    def add(self, part: LogConsumer, now: float) -> list[Effect]:
        """Carry one more consumer, and tell it what the others were told before it came."""
        self._matching.clear()
        self._common = None
        for each in part.filters:
            self._find_by(part, each)
        if len(self._parts) >= self._apart_max:
            for other in (part, *(self._parts.values() if len(self._parts) == self._apart_max else ())):
                other.listen_for_news()
        actions = self._begin(part, now)
        for prefix in self._listening:
            actions += self._tell(part, part.handle_subscription, prefix, True, now, now=now)
        for info in self._stores.values():
            actions += self._tell(part, part.handle_message, info, now, now=now)
        return actions

    def remove(self, address: str, now: float) -> list[Effect]:
        self._matching.clear()
        self._common = None
        self._prefixed.pop(address, None)
        for name in self._named.pop(address, {}):
            self._forget_exact(name, address)
        self._paused.pop(address, None)
        self._gathering.pop(address, None)
        self._waited_for.clear(address)
        return super().remove(address, now)

    def subscribe(self, part: LogConsumer, wanted: Filter, now: float) -> list[Effect]:
        self._matching.clear()
        self._common = None
        self._find_by(part, wanted)
        return self._tell(part, part.subscribe, wanted, now, now=now)

    def unsubscribe(self, part: LogConsumer, wanted: Filter, now: float) -> list[Effect]:
        self._matching.clear()
        self._common = None
        actions = self._tell(part, part.unsubscribe, wanted, now, now=now)
        if not wanted.prefix:
            self._named.get(part.address, {}).pop(wanted.name, None)
            self._forget_exact(wanted.name, part.address)
        elif not any(each.prefix for each in part.filters):
            self._prefixed.pop(part.address, None)
        return actions

    def _find_by(self, part: LogConsumer, wanted: Filter) -> None:
        if wanted.prefix:
            self._prefixed[part.address] = part
        else:
            self._exact.setdefault(wanted.name, {})[part.address] = part
            self._named.setdefault(part.address, {})[wanted.name] = None

    def _forget_exact(self, name: str, address: str) -> None:
        named = self._exact.get(name, {})
        named.pop(address, None)
        if not named:
            self._exact.pop(name, None)

    def carry(self, part: LogConsumer, actions: Sequence[Effect]) -> list[Effect]:
        """Carry out a consumer's actions: it may have had enough by now, or want more again."""
        carried = super().carry(part, actions)
        if part.gathers and part.address in self._parts:
            self._gathering[part.address] = part
        if part.paused and part.address in self._parts:
            if part.address not in self._paused:
                self._paused[part.address] = None
                if not part.stores:
                    self._waited_for.set(part.address, self._now + FULL_PEER_WAIT_LIVE_S)
        elif part.address in self._paused:
            del self._paused[part.address]
            self._waited_for.clear(part.address)
        return carried

    @property
    def paused(self) -> bool:
        """True if messages are to be left in the queue. Ask before each: one that is full drops the next."""
        return bool(self._paused) and (len(self._paused) == len(self._parts) or len(self._waited_for) > 0)

    # -- the world ------------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Tell original stores that listen which topics are wanted."""
        if prefix[:1] != b"W" and prefix != b"G":
            return []
        count = self._listening.get(prefix, 0) + (1 if on else -1)
        if count > 0:
            self._listening[prefix] = count
        else:
            self._listening.pop(prefix, None)
        if on and prefix[:1] == b"W":
            self._inquiries.want(now)
        return self._tell_all(lambda part: part.handle_subscription(prefix, on, now), now) if on else []

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Take a message of a peer; later call ``flush``. Raises ProtocolError for a malformed batch."""
        if isinstance(message, (BatchMessage, RecordMessage, Head)):
            if message.direct and not isinstance(message, Head):
                return self._hand([message.topic], message, now)
            return self._hand(self._who_wants(message.subject), message, now)
        if isinstance(message, OnDisk):
            return self._hand(self._who_wants(message.topic), message, now)
        if isinstance(message, StoreHello | ClockTold):
            return self._hand([message.topic], message, now)
        if not isinstance(message, StoreInfo):
            return []
        if message.address in self._stores or len(self._stores) < self._stores_max:
            self._stores[message.address] = message
        return self._tell_all(lambda part: part.handle_message(message, now), now)

    def flush(self, now: float) -> list[Effect]:
        """Deliver gathered single records; call it when no message is pending, and before any other input."""
        gathering, self._gathering = self._gathering, {}
        return [action for part in gathering.values() for action in self._tell(part, part.flush, now, now=now)]

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        if request_id < REQUESTS:
            return self._news_answered(request_id, answer, now)
        part = self._numbered.get(request_id // REQUESTS)
        if part is None:
            return []
        actions = self._tell(part, part.handle_answer, request_id % REQUESTS, answer, batches, now, now=now)
        for store, version in part.take_rested().items():
            news = self._news.setdefault(store, _News(version))
            news.version = min(news.version, version)
            if store not in self._polls:
                self._polls.set(store, now + POLL_HEADS_S)
        return actions

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        self._forget_news(address)
        if kind_of(address) != CONSUMING and self._originals:
            self._inquiries.want(now)
        if self._stores.pop(address, None) is None and len(self._stores) < self._stores_max:
            return []
        return self._tell_all(lambda part: part.handle_gone(address, now), now)

    def handle_timeout(self, now: float) -> list[Effect]:
        self._waited_for.due(now)
        actions = super().handle_timeout(now)
        for store in self._polls.due(now):
            actions += self._ask_for_news(store, now)
        return actions + (self._inquire() if self._inquiries.due(now) else [])

    def next_timeout(self) -> float:
        """Return when something of a part is due, a store is to be asked, or nobody is waited for any longer."""
        asks_at = min(self._polls.next, self._inquiries.next_timeout())
        return min(super().next_timeout(), self._waited_for.next, asks_at)

    # -- news -----------------------------------------------------------------------------------------

    @property
    def _originals(self) -> bool:
        """True if an original store listens; a store of ours counts until it has told its query endpoint."""
        listening = (address_in(prefix) for prefix in self._listening if prefix[:1] == b"W")
        return any(store is not None and store not in self._stores for store in listening)

    def _inquire(self) -> list[Effect]:
        """Ask original stores for the ends of the wanted partitions."""
        if not self._originals:
            return []
        names = sorted({each.name for part in self._parts.values() for each in part.filters})
        if len(names) > ASKED_APART_MAX:
            names = [_common(names[0], names[-1])]
        return [Publish(GetHeads(name, next(iter(self._parts)))) for name in names]

    def _ask_for_news(self, store: str, now: float) -> list[Effect]:
        news, info = self._news[store], self._stores.get(store)
        if news.asked or info is None or not self._parts:
            return self._ask_themselves(store, now)
        if self._common is None:
            names = [each.name for part in self._parts.values() for each in part.filters]
            if not names:  # all were ended: whoever comes or wants something again asks for itself first
                self._forget_news(store)
                return []
            self._common = encode_topic(_common(min(names), max(names)))
        self._asked += 1
        news.asked = (self._asked, news.version, now)
        self._polls.set(store, now + ANSWER_S)
        return [Ask(info.endpoint, self._asked, HeadsRequest(self._common, news.version))]

    def _news_answered(self, number: int, answer: Answer, now: float) -> list[Effect]:
        store = next((each for each, news in self._news.items() if news.asked and news.asked[0] == number), None)
        if store is None:
            return []
        news = self._news[store]
        assert news.asked is not None
        _, since, at = news.asked
        if not isinstance(answer, HeadsAnswer) or answer.more:
            return self._ask_themselves(store, now)
        if news.version == since:  # else somebody has come to it meanwhile who knows less
            news.version = answer.version
        news.asked = None
        self._polls.set(store, at + POLL_HEADS_S)
        concerned = dict.fromkeys(address for info in answer.infos() for address in self._who_wants(info.topic))
        return self._tell_news(store, concerned, now)

    def _ask_themselves(self, store: str, now: float) -> list[Effect]:
        """Let all consumers ask the store, as its news are unknown; they leave it to the node again later."""
        self._forget_news(store)
        return self._tell_news(store, list(self._parts), now)

    def _forget_news(self, store: str) -> None:
        self._news.pop(store, None)
        self._polls.clear(store)

    def _tell_news(self, store: str, addresses: Iterable[str], now: float) -> list[Effect]:
        actions: list[Effect] = []
        for address in addresses:
            part = self._parts.get(address)
            if part is not None:
                actions += self._tell(part, part.hear_news, store, now, now=now)
        return actions

    # -- inside ---------------------------------------------------------------------------------------

    def _tell_all(self, method: Callable[[LogConsumer], list[Effect]], now: float) -> list[Effect]:
        actions: list[Effect] = []
        for part in list(self._parts.values()):
            actions += self._tell(part, method, part, now=now)
        return actions

    def _hand(self, addresses: Iterable[str], message: Message, now: float) -> list[Effect]:
        actions: list[Effect] = []
        for address in addresses:
            part = self._parts.get(address)
            if part is not None:
                taken = _told_of(message) if part.paused or part.min_acks else message
                actions += self._tell(part, part.handle_message, taken, now, now=now)
        return actions

    def _who_wants(self, topic: str) -> list[str]:
        found = self._matching.get(topic)
        if found is None:
            if len(self._matching) >= MATCHING_MAX:
                self._matching.clear()
            matching = dict(self._exact.get(topic, {}))
            matching |= {address: part for address, part in self._prefixed.items() if part.wants(topic)}
            found = self._matching[topic] = list(matching)
        return found


def _common(one: str, other: str) -> str:
    """Return the common beginning; of several texts it is enough to look at the first and the last in order."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _told_of(message: Message) -> Message:
    """Return a message without its records, which tells how far the partition goes."""
    if isinstance(message, BatchMessage):
        last = Batch.parse(message.body, check=False).next - 1
    elif isinstance(message, RecordMessage):
        last = message.sequence
    else:
        return message
    return Head(message.topic, message.address, message.subject, last, message.direct)


TOLD_S: Final = REPLAY_S + 0.05  # so long after a tower heard us it has told us of everybody


class Scout(ConsumingMember):
    """Finds stores without consuming, and knows when it has found all.

    A forwarder that was dialled says what it is, so all are known once each has. A tower tells a newcomer of everybody
    it knows at once, or a moment later if it just did so for another one, and everybody answers the newcomer's beacon.
    Neither says that this was all. So all are known when that moment has passed since the tower heard us, and each node
    that may be a store has said that it is one. Some never do: programs of the original, and stores that are stopped.
    Those are waited for a little, and so is everybody where there are several towers: it is unknown which has heard us.

    Args:
        settle_s: The longest wait for others after the first store.
        towers: How many there are to ask.
        forwarders: How many are dialled instead.
    """

    def __init__(self, name: str, settle_s: float, *, towers: int = 0, forwarders: int = 0) -> None:
        super().__init__(name)
        self.stores: dict[str, StoreInfo] = {}
        self._settle_s = settle_s
        self._towers = towers
        self._forwarders = forwarders
        self._found_at = math.inf  # the first store
        self._heard_at = math.inf  # by a tower

    def until(self, tower: bool, met: Iterable[str], now: float) -> float:
        """Until when to wait for more; ``tower`` tells that one hears us, ``met`` are the addresses of known nodes."""
        if not tower:
            self._heard_at = math.inf
        elif self._heard_at == math.inf:
            self._heard_at = now
        if not self.stores:
            return math.inf
        self._found_at = min(self._found_at, now)
        settled = self._found_at + self._settle_s
        if self._forwarders:
            return now if len(self.stores) >= self._forwarders else settled
        if self._towers > 1 or any(not kind_of(each) and each not in self.stores for each in met):
            return settled
        return min(settled, self._heard_at + TOLD_S)

    def start(self, now: float) -> list[Effect]:
        return [Subscribe(b"I"), Subscribe(b"L" + encode_topic(self.address))]

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        if isinstance(message, StoreInfo):
            self.stores[message.address] = message
        return []

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        self.stores.pop(address, None)
        return []
