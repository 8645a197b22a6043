"""What one node carries: any number of producers, or any number of consumers, over one set of sockets.

Each part keeps the address that it has. Topics and addresses are subscribed to once, for however many parts want them,
and what arrives goes to those whom it concerns, found by a look into a dictionary. An action that only the part's own
driver can carry out comes as ``Of`` that part.

Producers and consumers are not mixed in one node: a consumer that is not read may leave messages in the queue, and
acknowledgements would wait behind them. So nodes say in their address what they carry, and those with nothing to say to
each other do not connect.

A part that raises is carried no more (``Broken``); what was done with the others stands.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Generic, Protocol, TypeVar

from chappe.data.topic import encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import FULL_PEER_WAIT_LIVE_S, POLL_HEADS_S
from chappe.errors import ProtocolError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action, Ask, Broken, Claim, Disclaim, Of, Publish, Resume, Subscribe, Unsubscribe
from chappe.log.batch import Batch
from chappe.log.beacon import CONSUMING, PRODUCING
from chappe.log.consumer import LogConsumer
from chappe.log.messages import Ack, BatchMessage, Fetch, Head, Message, RecordMessage, Stored, StoreHello, StoreInfo
from chappe.log.producer import STORES, LogProducer
from chappe.log.producers import LogProducers
from chappe.log.queries import Answer, HeadsAnswer, HeadsRequest
from chappe.log.sources import ANSWER_S
from chappe.log.subscriptions import Subscriptions

AT_ONCE: Final = 64  # parts whose time-outs are handled in one go: nobody waits longer for the lock
MATCHING_MAX: Final = 10_000  # topics whose consumers are remembered
REQUESTS: Final = 1 << 32  # numbers of requests that each part has; the first are the node's


class Part(Protocol):
    """A core that a node carries."""

    address: str

    def start(self, now: float) -> list[Action]:
        """Begin."""

    def handle_timeout(self, now: float) -> list[Action]:
        """Do what is due."""

    def next_timeout(self) -> float:
        """When something is due."""


P = TypeVar("P", bound=Part)


class _Carrying(Generic[P]):
    """What nodes of both kinds have in common."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._parts: dict[str, P] = {}
        self._due: Deadlines[str] = Deadlines()
        self._wanted: dict[bytes, int] = {}  # prefix -> parts that want it
        self._wants: dict[str, dict[bytes, None]] = {}  # of each part
        self._numbers: dict[str, int] = {}  # of parts that ask stores
        self._numbered: dict[int, P] = {}
        self._last_number = 0
        self._now = 0.0  # when a part was last told something

    def __len__(self) -> int:
        return len(self._parts)

    def start(self, now: float) -> list[Action]:
        """Begin: everything is told of each part as it is added."""
        return []

    def carry(self, part: P, actions: Sequence[Action]) -> list[Action]:
        """What a part answered, as actions of the node; its next time-out is looked at, too."""
        address = part.address
        if address not in self._parts:
            return []
        self._due.set(address, part.next_timeout())
        carried: list[Action] = []
        for action in actions:
            kind = type(action)
            if kind is Publish:
                carried.append(action)
            elif isinstance(action, Subscribe):
                carried += self._subscribe(address, action)
            elif isinstance(action, Unsubscribe):
                carried += self._unsubscribe(address, action)
            elif isinstance(action, Ask):
                number = self._number(part) * REQUESTS + action.request_id
                carried.append(Ask(action.endpoint, number, action.request))
            else:
                carried.append(Of(address, action))
        return carried

    def remove(self, address: str, now: float) -> list[Action]:
        """Carry a part no more: what nobody else wants is not subscribed to any longer."""
        if self._parts.pop(address, None) is None:
            return []
        self._due.clear(address)
        self._numbered.pop(self._numbers.pop(address, 0), None)
        actions: list[Action] = []
        for prefix in list(self._wants[address]):
            actions += self._unsubscribe(address, Unsubscribe(prefix))
        del self._wants[address]
        return actions

    def handle_timeout(self, now: float) -> list[Action]:
        """Do what is due of some parts; ``next_timeout`` tells if there are more."""
        actions: list[Action] = []
        for address in self._due.due(now, AT_ONCE):
            part = self._parts[address]
            actions += self._tell(part, part.handle_timeout, now, now=now)
        return actions

    def next_timeout(self) -> float:
        """When something of a part is due."""
        return self._due.next

    def wrong(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        wanted = Counter(prefix for wants in self._wants.values() for prefix in wants)
        if wanted == self._wanted and self._wants.keys() == self._parts.keys():
            return []
        return [f"parts want {wanted}, counted is {self._wanted}"]

    def _begin(self, part: P, now: float) -> list[Action]:
        assert part.address not in self._parts
        self._parts[part.address] = part
        self._wants[part.address] = {}
        return self._tell(part, part.start, now, now=now)

    def _tell(self, part: P, method: Callable[..., list[Action]], *args: object, now: float) -> list[Action]:
        """Call a part. What it raises is its own end, but for ProtocolError, which is the sender's fault."""
        self._now = now
        try:
            return self.carry(part, method(*args))
        except ProtocolError:
            raise
        except Exception as error:
            return [*self.remove(part.address, now), Of(part.address, Broken(error))]

    def _subscribe(self, address: str, action: Subscribe) -> list[Action]:
        prefix, wants = action.prefix, self._wants[address]
        if prefix in wants:
            return []
        wants[prefix] = None
        count = self._wanted[prefix] = self._wanted.get(prefix, 0) + 1
        return [action] if count == 1 else []

    def _unsubscribe(self, address: str, action: Unsubscribe) -> list[Action]:
        prefix, wants = action.prefix, self._wants[address]
        if prefix not in wants:
            return []
        del wants[prefix]
        self._wanted[prefix] -= 1
        if self._wanted[prefix]:
            return []
        del self._wanted[prefix]
        return [action]

    def _number(self, part: P) -> int:
        number = self._numbers.get(part.address)
        if number is None:
            number = self._numbers[part.address] = self._last_number = self._last_number + 1
            self._numbered[number] = part
        return number


class ProducingMember(_Carrying[LogProducers]):
    """Carries producers; no other node has its ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(PRODUCING + name)
        self.subscriptions = Subscriptions()  # to be given to each producer
        self._topics: dict[bytes, dict[str, LogProducer]] = {}  # topic -> its partitions here, by address
        self._sorted: list[bytes] = []  # these topics
        self._identities: dict[str, None] = {}

    # -- the parts ------------------------------------------------------------------------------------

    def add(self, part: LogProducers, now: float, identity: bool = False) -> list[Action]:
        """Carry one more producer; if it goes on with an identity, others are told so."""
        assert part.subscriptions is self.subscriptions
        actions = self._begin(part, now)
        if not identity:
            return actions
        self._identities[part.address] = None
        return [*actions, Claim(part.address)]

    def add_topic(self, part: LogProducers, partition: LogProducer, now: float) -> list[Action]:
        """A producer writes one more topic."""
        raw = encode_topic(partition.topic)
        if raw not in self._topics:
            self._topics[raw] = {}
            insort(self._sorted, raw)
        self._topics[raw][part.address] = partition
        return self.carry(part, part.add(partition, now))

    def remove(self, address: str, now: float) -> list[Action]:
        """See ``_Carrying.remove``."""
        part = self._parts.get(address)
        for partition in () if part is None else part.partitions():
            raw = encode_topic(partition.topic)
            del self._topics[raw][address]
            if not self._topics[raw]:
                del self._topics[raw]
                del self._sorted[bisect_left(self._sorted, raw)]
        actions = super().remove(address, now)
        if address in self._identities:
            del self._identities[address]
            actions.append(Disclaim(address))
        return actions

    # -- the world ------------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """A listener came or went."""
        self.subscriptions.change(prefix, on)
        if prefix[:1] == b"R" and on:
            concerned = self._starting(prefix[1:])
        elif prefix in (b"", b"M", STORES) or (prefix[:1] == b"W" and on):
            concerned = self._starting(b"")
        else:
            return []
        actions: list[Action] = []
        for partition in concerned:
            part = self._parts[partition.address]
            actions += self._tell(part, partition.handle_listener, prefix, on, now, now=now)
        return actions

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        """An acknowledgement, or a request for what somebody missed."""
        match message:
            case Stored() | Ack() | Fetch():
                part = self._parts.get(message.topic)
                return [] if part is None else self._tell(part, part.handle_message, message, now, wall_us, now=now)
        return []

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A node left: its subscriptions end by themselves."""
        return []

    def _starting(self, prefix: bytes) -> list[LogProducer]:
        """All partitions of topics that start so."""
        found: list[LogProducer] = []
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            raw = self._sorted[index]
            if not raw.startswith(prefix):
                break
            found += self._topics[raw].values()
        return found


@dataclass(slots=True)
class _News:
    """Whether a store has something new for consumers that do not ask it themselves."""

    version: int  # up to which each of them knows all that concerns it
    asked: tuple[int, int, float] | None = None  # a question under way: its number, since which version, when


class ConsumingMember(_Carrying[LogConsumer]):
    """Carries consumers; no other node has its ``name``.

    One whose application does not keep up is not handed more. Alone in its node it leaves messages in the queue, and
    whoever sends them waits as for every full peer. Beside others it only notes how far partitions go, and reads from
    stores later what it let pass; if it knows no store, the others wait for it a little first.

    A consumer asks every store once a second what is new. Where there are many, the node asks for all: those who want
    what is new then ask for themselves, as do all if the answer is long, or does not come.
    """

    def __init__(self, name: str, limits: LogLimits = LOG_LIMITS) -> None:
        super().__init__(CONSUMING + name)
        self._stores_max = limits.stores_max
        self._apart_max = limits.apart_max
        self._exact: dict[str, dict[str, LogConsumer]] = {}  # by the topic that they want
        self._named: dict[str, list[str]] = {}  # under which topics one is found there, whatever it wants by now
        self._prefixed: dict[str, LogConsumer] = {}  # those that want topics by their beginning
        self._matching: dict[str, list[str]] = {}  # who wants a topic, as found before
        self._stores: dict[str, StoreInfo] = {}  # what a consumer that comes later is told
        self._listening: dict[bytes, int] = {}  # likewise: subscriptions of stores of the original
        self._paused: dict[str, None] = {}
        self._waited_for: Deadlines[str] = Deadlines()  # paused ones, and until when the others wait
        self._left = False  # messages were left in the queue
        self._news: dict[str, _News] = {}  # by store
        self._polls: Deadlines[str] = Deadlines()  # when a store is to be asked, or should have answered
        self._asked = 0  # how many questions the node itself asked
        self._common: bytes | None = b""  # how all wanted topics begin; None: to be found out

    # -- the parts ------------------------------------------------------------------------------------

    def add(self, part: LogConsumer, now: float) -> list[Action]:
        """Carry one more consumer; it hears what was told before it came."""
        self._matching.clear()
        self._common = None
        for each in part.filters:
            if each.prefix:
                self._prefixed[part.address] = part
            else:
                self._exact.setdefault(each.name, {})[part.address] = part
                self._named.setdefault(part.address, []).append(each.name)
        if len(self._parts) >= self._apart_max:
            for each in (part, *(self._parts.values() if len(self._parts) == self._apart_max else ())):
                each.listen_for_news()
        actions = self._begin(part, now)
        for prefix in self._listening:
            actions += self._tell(part, part.handle_subscription, prefix, True, now, now=now)
        for info in self._stores.values():
            actions += self._tell(part, part.handle_message, info, now, 0, now=now)
        return actions + self._resume()  # it may be that only others here have no room

    def remove(self, address: str, now: float) -> list[Action]:
        """See ``_Carrying.remove``."""
        self._matching.clear()
        self._common = None
        self._prefixed.pop(address, None)
        for name in self._named.pop(address, ()):
            named = self._exact.get(name, {})
            named.pop(address, None)
            if not named:
                self._exact.pop(name, None)
        self._paused.pop(address, None)
        self._waited_for.clear(address)
        return super().remove(address, now) + self._resume()

    def carry(self, part: LogConsumer, actions: Sequence[Action]) -> list[Action]:
        """See ``_Carrying.carry``; a consumer may have had enough by now, or want more again."""
        carried = super().carry(part, actions)
        if part.paused and part.address in self._parts:
            if part.address not in self._paused:
                self._paused[part.address] = None
                if not part.stores:
                    self._waited_for.set(part.address, self._now + FULL_PEER_WAIT_LIVE_S)
        elif part.address in self._paused:
            del self._paused[part.address]
            self._waited_for.clear(part.address)
            carried += self._resume()
        return carried

    @property
    def paused(self) -> bool:
        """Whether messages are to be left in the queue. Ask before each: one that is full lets go of the next."""
        self._left = bool(self._paused) and (len(self._paused) == len(self._parts) or len(self._waited_for) > 0)
        return self._left

    def _resume(self) -> list[Action]:
        return [Resume()] if self._left and not self.paused else []

    # -- the world ------------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """Somebody listens to us: stores of the original are to be told what is wanted."""
        if prefix[:1] != b"W" and prefix != b"G":
            return []
        count = self._listening.get(prefix, 0) + (1 if on else -1)
        if count > 0:
            self._listening[prefix] = count
        else:
            self._listening.pop(prefix, None)
        return self._tell_all(lambda part: part.handle_subscription(prefix, on, now), now) if on else []

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        """Something a peer published. Raises ProtocolError for a malformed batch."""
        if isinstance(message, (BatchMessage, RecordMessage, Head)):
            if message.direct:
                return self._hand([message.topic], message, now, wall_us)
            return self._hand(self._who_wants(message.subject), message, now, wall_us)
        if isinstance(message, StoreHello):
            return self._hand([message.topic], message, now, wall_us)
        if not isinstance(message, StoreInfo):
            return []
        if message.address in self._stores or len(self._stores) < self._stores_max:
            self._stores[message.address] = message
        return self._tell_all(lambda part: part.handle_message(message, now, wall_us), now)

    def handle_answer(self, request_id: int, answer: Answer, batches: list[bytes], now: float) -> list[Action]:
        """A store answered one of the consumers."""
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

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A node left."""
        self._forget_news(address)
        if self._stores.pop(address, None) is None and len(self._stores) < self._stores_max:
            return []
        return self._tell_all(lambda part: part.handle_gone(address, now), now)

    def handle_timeout(self, now: float) -> list[Action]:
        """See ``_Carrying.handle_timeout``."""
        self._waited_for.due(now)
        actions = super().handle_timeout(now) + self._resume()
        for store in self._polls.due(now):
            actions += self._ask_for_news(store, now)
        return actions

    def next_timeout(self) -> float:
        """When something of a part is due, a store is to be asked, or nobody is waited for any longer."""
        return min(self._due.next, self._waited_for.next, self._polls.next)

    # -- news -----------------------------------------------------------------------------------------

    def _ask_for_news(self, store: str, now: float) -> list[Action]:
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

    def _news_answered(self, number: int, answer: Answer, now: float) -> list[Action]:
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

    def _ask_themselves(self, store: str, now: float) -> list[Action]:
        """Nothing is known of what is new: all ask, and leave it to the node again when they know."""
        self._forget_news(store)
        return self._tell_news(store, list(self._parts), now)

    def _forget_news(self, store: str) -> None:
        self._news.pop(store, None)
        self._polls.clear(store)

    def _tell_news(self, store: str, addresses: Iterable[str], now: float) -> list[Action]:
        actions: list[Action] = []
        for address in addresses:
            part = self._parts.get(address)
            if part is not None:
                actions += self._tell(part, part.handle_news, store, now, now=now)
        return actions

    # -- inside ---------------------------------------------------------------------------------------

    def _tell_all(self, method: Callable[[LogConsumer], list[Action]], now: float) -> list[Action]:
        actions: list[Action] = []
        for part in list(self._parts.values()):
            actions += self._tell(part, method, part, now=now)
        return actions

    def _hand(self, addresses: Iterable[str], message: Message, now: float, wall_us: int) -> list[Action]:
        actions: list[Action] = []
        for address in addresses:
            part = self._parts.get(address)
            if part is not None:
                taken = _told_of(message) if part.paused else message
                actions += self._tell(part, part.handle_message, taken, now, wall_us, now=now)
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
    """How both begin; of several texts it is enough to look at the first and the last in order."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _told_of(message: Message) -> Message:
    """What a message tells without its records: how far the partition goes."""
    if isinstance(message, BatchMessage):
        last = Batch.parse(message.body, check=False).next - 1
    elif isinstance(message, RecordMessage):
        last = message.sequence
    else:
        return message
    return Head(message.topic, message.address, message.subject, last, message.direct)
