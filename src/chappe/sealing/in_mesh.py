"""Sealed topics of the mesh, and sealed data stores: what an endpoint seals, and what it makes of messages that come.

The owner looks at files, and holds a lock during each call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from chappe.core import Clock
from chappe.errors import ProtocolError, Sealed
from chappe.kv.commands import sender_endpoint
from chappe.kv.entity import master_topic, store_of
from chappe.mesh.events import MessagesRefused
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message, OpenedMessage
from chappe.permissions.rules import Group
from chappe.sealing import messages as sealing
from chappe.sealing.events import in_lots, is_sealed, pack_values, parse_values, unwrap, wrap
from chappe.sealing.messages import Lives, MessageOpener, MessageSealer
from chappe.sealing.ring import EARLY, EpochSecret, HeldGroups, Ring
from chappe.sealing.senders import KeysLacking, SealRefused

LOOK_S: Final = 1.0  # between two looks at what is new
KEYS_WAIT_S: Final = 30.0  # so long messages whose keys are not there yet are kept ...
KEPT_MAX: Final = 1_024  # ... and so many at most ...
KEPT_BYTES_MAX: Final = 16 << 20  # ... of so many bytes
TOPICS_MAX: Final = 10_000  # of which it is remembered for whom they are sealed
_KINDS: Final = {DATA: sealing.EVENTS, COMMAND: sealing.COMMAND}
_EARLY_US: Final = int(EARLY.total_seconds() * 1_000_000)


class MeshSealing:
    """Seals and opens the messages of one endpoint.

    Args:
        look: Has ``held`` take what is new; called with the time at most every ``LOOK_S``.
        now: The time in seconds, steady.
        clock: The time of day.

    Attributes:
        refused: How many messages were not delivered, as they could not be opened.
        due: When ``look`` wants to be called.
        allows: The verb that an identity lacks to send a command to a topic; empty if it may.
    """

    def __init__(
        self,
        held: HeldGroups,
        sealer: MessageSealer,
        look: Callable[[float], object],
        now: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._held = held
        self._look = look
        self._now = now
        self._clock = clock
        self._sealer = sealer
        self._opener = MessageOpener()
        self._lives = Lives(sealer.salt, clock.wall_ns() // 1000 - _EARLY_US)
        self._of: dict[bytes, Group | None] = {}
        self._checked: dict[str, EpochSecret | str] = {}  # by group: what to seal with, or why nothing can be
        self._kept: deque[tuple[float, Message, str]] = deque()  # since when, and why it cannot be opened yet
        self._kept_bytes = 0
        self._untold: dict[bytes, tuple[int, str]] = {}  # by topic: how many were refused, and why
        self.allows: Callable[[str, bytes, bytes], str] = lambda name, topic, command: ""
        self.refused = 0
        look(now())
        self.due = now() + LOOK_S

    # -- sealing --------------------------------------------------------------------------------------

    def seals(self, topic: bytes) -> bool:
        return self._group(topic) is not None

    def seal(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: bytes = NOBODY) -> bytes:
        """A payload as it is to be published; the same if its topic is plain. Raises Sealed if it cannot be sealed."""
        group = self._group(topic)
        return payload if group is None else self._sealed(group, topic, [payload], kind, receiver)

    def check(self, store: bytes) -> None:
        """Raise Sealed if a data store is sealed, and nothing can be sealed for it now."""
        group = self._group(store)
        if group is not None:
            self._secret(group, master_topic(store))

    def seal_commands(self, topic: bytes, payloads: list[bytes], receiver: bytes) -> list[bytes]:
        """Seal commands of a data store; return none if they cannot be sealed now: clones that miss one ask again."""
        group = self._group(topic)
        if group is None:
            return payloads
        try:
            return [self._sealed(group, topic, lot, COMMAND, receiver) for lot in in_lots(payloads)]
        except Sealed as error:
            count, _ = self._untold.get(topic, (0, ""))
            self._untold[topic] = count + len(payloads), str(error)
            return []

    def ring(self, store: bytes) -> Ring | None:
        """The keys of those for whom a data store is sealed; None if it is plain. Raises as ``check``."""
        self.check(store)
        group = self._group(store)
        return None if group is None else self._held.ring(group.name)

    def seal_many(self, topic: bytes, payloads: list[bytes]) -> list[bytes]:
        """Events of one topic that is sealed, several together; raises as ``seal``."""
        group = self._group(topic)
        assert group is not None
        return [self._sealed(group, topic, lot, DATA, NOBODY) for lot in in_lots(payloads)]

    def _sealed(self, group: Group, topic: bytes, payloads: list[bytes], kind: int, receiver: bytes) -> bytes:
        secret, place = self._secret(group, topic), (topic, receiver)
        wall_us = self._clock.wall_ns() // 1000
        return wrap(self._sealer.seal(secret, _KINDS[kind], place, pack_values(payloads), wall_us))

    def _secret(self, group: Group, topic: bytes) -> EpochSecret:
        secret = self._checked.get(group.name)
        if secret is None:
            secret = self._checked[group.name] = self._held.refusal(group) or self._newest(group)
        if isinstance(secret, str):
            store = store_of(topic)
            what = "topic" if store is None else "data store"
            name = (store or topic).decode("utf-8", "backslashreplace")
            error = Sealed(f"{what} {name!r} is sealed for {group.name}, and nothing was sent: {secret}")
            error.passing = self._held.within(group)
            raise error
        return secret

    def _newest(self, group: Group) -> EpochSecret:
        ring = self._held.ring(group.name)
        newest = None if ring is None else ring.newest
        assert newest is not None  # else it is refused
        return newest

    # -- opening --------------------------------------------------------------------------------------

    def open(self, messages: list[Message]) -> list[Message]:
        """Open the messages that are for us, in their order; those of plain topics stay as they are."""
        topic = messages[0].topic
        group = self._group(topic)
        if group is None and not any(is_sealed(each.payload) for each in messages):
            return messages
        found: list[Message] = []
        for each in messages:
            opened = self._open(each, group)
            if not isinstance(opened, KeysLacking):
                found += opened
            elif not self._keep(each, opened.reason):
                self._refuse(each, opened.reason)
        return found

    @property
    def waits(self) -> bool:
        return bool(self._kept)

    def look(self) -> list[Message]:
        """Look whether files have changed; returns what was kept for keys that are there by now."""
        now = self._now()
        self.due = now + LOOK_S
        before = self._held.changes
        self._look(now)
        found = [] if self._held.changes == before else self._try_again()
        while self._kept and now - self._kept[0][0] >= KEYS_WAIT_S:
            _, message, reason = self._kept.popleft()
            self._kept_bytes -= len(message.payload)
            self._refuse(message, reason)
        return found

    def untold(self) -> list[MessagesRefused]:
        """Return the refusals that are to be told: once for each ``look``."""
        untold, self._untold = self._untold, {}
        return [MessagesRefused(topic, count, reason) for topic, (count, reason) in untold.items()]

    def _try_again(self) -> list[Message]:
        self._of.clear()
        self._checked.clear()
        waiting, self._kept, self._kept_bytes = self._kept, deque(), 0
        found: list[Message] = []
        for since, message, _ in waiting:
            opened = self._open(message, self._group(message.topic))
            if isinstance(opened, KeysLacking):
                self._put_back(since, message, opened.reason)
            else:
                found += opened
        return found

    def _open(self, message: Message, group: Group | None) -> list[Message] | KeysLacking:
        held = self._held
        if group is None:
            return KeysLacking("the permissions here do not say for whom")
        if not is_sealed(message.payload):
            return self._refuse(message, f"they are not sealed for {group.name}, as the topic is")
        if not held.within(group):
            return self._refuse(message, f"{held.name} is not of the group {group.name}")
        ring = held.ring(group.name)
        if ring is None:
            return KeysLacking(f"{held.where(group.name)} is not there, or not usable")
        place = message.topic, message.receiver
        try:
            raw = unwrap(message.payload)
            outcome = self._opener.open(raw, _KINDS[message.kind], place, ring, held.permissions.identities)
            if isinstance(outcome, KeysLacking):
                path = held.where(group.name)
                return KeysLacking(f"{outcome.reason}: no newer {path} has been handed on, or copied here")
            refusal = outcome.reason if isinstance(outcome, SealRefused) else self._lives.refusal(outcome.frame)
            if refusal or isinstance(outcome, SealRefused):
                return self._refuse(message, refusal)
            payloads = parse_values(outcome.content)
            if message.kind == COMMAND:
                refusal = self._refused_command(message.topic, payloads, outcome.frame.sender)
                if refusal:
                    return self._refuse(message, refusal)
        except ProtocolError as error:
            return self._refuse(message, str(error))
        return [_opened(message, each, outcome.frame.sender) for each in payloads]

    def _refused_command(self, topic: bytes, commands: list[bytes], name: str) -> str:
        """The reason to refuse a sealed command, not its sealer's own or not allowed: neighbours could not see it."""
        endpoint = self._held.permissions.identities[name].endpoint
        for each in commands:
            if endpoint is not None and sender_endpoint(each) != endpoint.bytes:
                return f"{name} has sealed them in the name of another endpoint"
            verb = self.allows(name, topic, each)
            if verb:
                return f"{name} may not {verb} there"
        return ""

    def _keep(self, message: Message, reason: str) -> bool:
        if len(self._kept) >= KEPT_MAX or self._kept_bytes + len(message.payload) > KEPT_BYTES_MAX:
            return False
        self._put_back(self._now(), message, reason)
        return True

    def _put_back(self, since: float, message: Message, reason: str) -> None:
        self._kept.append((since, message, reason))
        self._kept_bytes += len(message.payload)

    def _refuse(self, message: Message, reason: str) -> list[Message]:
        self.refused += 1
        count, _ = self._untold.get(message.topic, (0, ""))
        self._untold[message.topic] = count + 1, reason
        return []

    def _group(self, topic: bytes) -> Group | None:
        """The group for which a topic is sealed; one of a data store as the store's name says."""
        try:
            return self._of[topic]
        except KeyError:
            name = store_of(topic)
            found = self._held.group((topic if name is None else name).decode("utf-8", "surrogateescape"))
            if len(self._of) >= TOPICS_MAX:
                self._of.clear()
            self._of[topic] = found
            return found


def _opened(message: Message, payload: bytes, by: str) -> Message:
    return OpenedMessage(
        message.topic, payload, message.kind, message.sender, message.receiver, message.ttl, message.origin,
        message.sequence, message.published, message.place, by,
    )  # fmt: skip
