"""The rights at a map server with keys: each message is judged by its identity, before the core has it.

A key has a topic: the map's name, a slash, and the key without its first slash; in a map without a name the key itself.
A reader of a subtree needs ``attach-clone`` for that prefix, a writer ``write`` for its keys; a condition on a value
needs both. The other server of a pair is known by its identity alone, and needs ``attach-master`` for the whole map,
as the one that serves it.

A sealed map is served to clients that name it, and takes only sealed values: so no client writes there in the clear
that does not know that it is sealed, or has older files. A server cannot tell whether values can be opened.

Only streams of chappe's are served: other programs have no keys, and nobody could refuse what one publishes to all.
"""

from __future__ import annotations

from collections.abc import Sequence

from chappe.errors import ProtocolError
from chappe.kv.chp import stream as say
from chappe.log.guard import LogRefusal
from chappe.permissions.rules import ATTACH_CLONE, ATTACH_MASTER, WRITE
from chappe.transports.gate import Gate


def topic_of(name: str, key: bytes) -> str:
    """Return the topic of a map's key, or of a prefix of keys."""
    text = key.decode("utf-8", "surrogateescape")
    return f"{name}/{text.removeprefix('/')}" if name else text


class MapRules:
    """The rules of one server of the map ``name``; ``partner``: the identity of the other server, if any."""

    def __init__(self, gate: Gate, name: str, partner: str = "") -> None:
        self._gate = gate
        self._name = name
        self._partner = partner
        self._changes = gate.changes
        self._sealed = self._is_sealed()
        self._unbound: dict[str, bool] = {}  # who may write, and expect, every key; as many as there are identities

    def changed(self) -> bool:
        if self._changes == self._gate.changes:
            return False
        self._changes = self._gate.changes
        self._sealed = self._is_sealed()
        self._unbound.clear()
        return True

    def request(self, who: str, frames: list[bytes]) -> tuple[list[bytes], bool]:
        """Return the request for the core, or the answer to give at once. Raises ProtocolError."""
        if not frames or frames[0] != say.MARK:
            return [], False  # a client of chappe that has not heard yet whom it speaks with, and asks again
        if frames[1:] and not self._sealed and say.is_steps(frames) and self._may_all(who):
            return frames, True
        message = say.from_client(frames)
        if isinstance(message, say.Hello):
            refusal = self.follow(who, peer=message.peer, subtrees=message.subtrees)
            if refusal is None and self._sealed and not message.peer and message.map != self._name:
                refusal = LogRefusal(who, ATTACH_CLONE, self._name, "the map is sealed: say its name when it is opened")
            if refusal is None:
                return frames, True
            self._gate.refuse(refusal)
            return say.encode(say.Refused(message.stream, f"{say.DENIED}{refusal}")), False
        if isinstance(message, say.Steps):
            return self._steps(who, message), True
        return frames, True

    def update(self, who: str) -> LogRefusal:
        """Return why nobody may publish or push updates, as the Guide's programs do."""
        return LogRefusal(who, WRITE, self._name, "it writes as programs of others do, which have no keys")

    def follow(self, who: str, *, peer: bool, subtrees: Sequence[bytes]) -> LogRefusal | None:
        """Return why an identity may not follow the map, or subtrees; None if it may."""
        if not peer:
            return next(filter(None, [self._why(who, ATTACH_CLONE, each, subtree=True) for each in subtrees]), None)
        if who != self._partner:
            other = f", {self._partner} is" if self._partner else ""
            return LogRefusal(who, ATTACH_MASTER, self._name, f"{who} is not the other server of this pair{other}")
        return self._why(who, ATTACH_MASTER, b"", subtree=True)

    def is_partner(self, who: str) -> bool:
        return bool(who) and self.follow(who, peer=True, subtrees=()) is None

    def _steps(self, who: str, message: say.Steps) -> list[bytes]:
        """Return the steps; forbidden ones become steps that fail and say why."""
        steps = []
        for step in message.steps:
            reasons = [self._why(who, WRITE, each[0]) for each in step.sets]
            reasons += [self._why(who, verb, key) for key, _ in step.expected for verb in (WRITE, ATTACH_CLONE)]
            refusal = next(filter(None, reasons), None)
            if refusal is None and self._sealed and not all(_is_sealed(body) for _, body, _, _ in step.sets):
                refusal = LogRefusal(who, WRITE, self._name, "the map is sealed, and the value is not")
            if refusal is not None:
                self._gate.refuse(refusal)
            steps.append(step if refusal is None else say.denied(str(refusal)))
        return say.encode(say.Steps(message.stream, message.first, tuple(steps)))

    def _is_sealed(self) -> bool:
        permissions = self._gate.decisions().permissions
        return bool(self._name) and permissions.group(topic_of(self._name, b"")) is not None

    def _may_all(self, who: str) -> bool:
        found = self._unbound.get(who)
        if found is None:
            found = not any(self._why(who, verb, b"", subtree=True) for verb in (WRITE, ATTACH_CLONE))
            self._unbound[who] = found
        return found

    def _why(self, who: str, verb: str, key: bytes, *, subtree: bool = False) -> LogRefusal | None:
        return self._gate.forbids(who, verb, topic_of(self._name, key), subtree=subtree)


def _is_sealed(body: bytes) -> bool:
    from chappe.sealing.messages import VALUE, decode  # which whoever has keys can import

    try:
        return not body or decode(body).kind == VALUE
    except ProtocolError:
        return False
