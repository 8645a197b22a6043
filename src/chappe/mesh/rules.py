"""Decisions of the permissions for an endpoint's core.

The driver makes these anew whenever another file is in force or somebody in it expires, and hands them to the core. So
their answers never change, and are remembered. A core without rules asks nobody.

A peer is the identity that its certificate names. Authorities give a name to one identity only, ever. One that is not
beside us is known by the endpoint id of its certificate, which whoever is beside it has seen; of an id that no identity
has nothing is said here, and those beside it decide.

========================================  ===============================================================
what is sent                              to send it as one's own takes, or to ``forward`` the topic
========================================  ===============================================================
data, and commands that are not a store's  ``publish``
a write to the master of a data store     ``write``, or ``attach-master``
anything else to a master                 ``attach-clone``, or ``attach-master``
a command to clones                       ``attach-master``
========================================  ===============================================================

To be sent a topic takes ``subscribe``; of what clones hear ``attach-clone`` or ``attach-master``, of what masters hear
``attach-master``; or to ``forward`` it. The topics of a data store are its name. Who may forward a topic may do all of
this with it, as it could say that it was another one's: originals that are beside it publish in its name.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final
from uuid import UUID

from chappe.compiled import Frozen
from chappe.data.topic import CLONE_SUFFIX, MASTER_SUFFIX
from chappe.mesh.filters import Filter
from chappe.mesh.messages import COMMAND
from chappe.permissions.rules import (
    ADMINISTER,
    ATTACH_CLONE,
    ATTACH_MASTER,
    FORWARD,
    PUBLISH,
    REMEMBERED_MAX,
    SUBSCRIBE,
    WRITE,
    Decisions,
    Permissions,
    Verbs,
)

JOIN: Final = "join"  # what is refused to who may nothing at all; not a verb of the file
_STORES: Final = b"/<$>/data/"
COMMAND_HEAD: Final = 57  # bytes of a data store's command up to its kind ...
_WRITES_BELOW: Final = 8  # ... and which of them are writes

_PUBLISHERS: Final[Verbs] = (PUBLISH, FORWARD)
_SUBSCRIBERS: Final[Verbs] = (SUBSCRIBE, FORWARD)
_WRITERS: Final[Verbs] = (WRITE, ATTACH_MASTER, FORWARD)
_CLONES: Final[Verbs] = (ATTACH_CLONE, ATTACH_MASTER, FORWARD)
_MASTERS: Final[Verbs] = (ATTACH_MASTER, FORWARD)
_FORWARDERS: Final[Verbs] = (FORWARD,)
_ADMINISTRATORS: Final[Verbs] = (ADMINISTER,)


class OfferRules(Frozen, frozen=True):
    """A job for the disk: take permissions handed on, if newer and signed; outcome: the rules then, None if refused."""

    raw: bytes


class MeshRules:
    """The decisions of ``permissions`` at ``moment``, valid until an identity expires.

    Args:
        raw: Their file, to be handed on.
        own: The identity that asks; empty if nobody but its endpoint id tells.
    """

    def __init__(self, permissions: Permissions, moment: datetime, raw: bytes = b"", own: str = "") -> None:
        self.permissions = permissions
        self.raw = raw
        self._own = own
        self._moment = moment
        self._whole = permissions.refusal(moment)
        self._decisions = Decisions(permissions, moment)
        found = [each for each in permissions.identities.values() if each.endpoint is not None]
        self._names = {each.endpoint.bytes: each.name for each in found if each.endpoint is not None}
        self._gets: dict[tuple[str, bytes], str] = {}
        self._publishes: dict[tuple[str, bytes], str] = {}
        self._forwards: dict[tuple[str, bytes], str] = {}

    def refusal(self, name: str, named: Collection[bytes] | None = None, stated: bytes = b"") -> str:
        """Return why an identity may not take part; empty if it may.

        Args:
            named: The endpoint ids that its certificate names, if one was shown.
            stated: The endpoint id that it says it has, if it has said so.
        """
        if self._whole:
            return self._whole
        identity = self.permissions.identities.get(name)
        if identity is None:
            return f"the permissions know no identity {name}" if name else "its certificate names no identity"
        if named is not None and identity.endpoint is not None and identity.endpoint.bytes not in named:
            ids = ", ".join(sorted(str(UUID(bytes=each)) for each in named)) or "none"
            return f"the endpoint id of {name} is {identity.endpoint}, and its certificate names {ids}"
        owner = self._names.get(stated, name)
        if owner != name:
            return f"{UUID(bytes=stated)} is the endpoint id of {owner}"
        return identity.refusal(self._moment)

    # -- of those beside us, by name ------------------------------------------------------------------

    def sending(self, name: str, kind: int, topic: bytes, payload: bytes) -> str:
        """Return the verb that an identity lacks to send this as its own; empty if it may. ``payload``: of a command
        its first ``COMMAND_HEAD`` bytes, of data nothing.
        """
        if kind == COMMAND:
            return self._lacking(name, *_to_send(topic, payload))
        return self.publishing(name, topic)

    def publishing(self, name: str, topic: bytes) -> str:
        """Return why an identity may not publish data to a topic; empty if it may."""
        key = name, topic
        found = self._publishes.get(key)
        if found is None:
            found = _remember(self._publishes, key, self._lacking(name, _PUBLISHERS, topic))
        return found

    def getting(self, name: str, topic: bytes) -> str:
        """Return the verb that an identity lacks to be sent messages of a topic; empty if it may."""
        key = name, topic
        found = self._gets.get(key)
        if found is None:
            found = _remember(self._gets, key, self._lacking(name, *_to_get(topic)))
        return found

    def forwarding(self, name: str, topic: bytes) -> str:
        """Return the verb that an identity lacks to pass on others' messages with this topic; empty if it may."""
        key = name, topic
        found = self._forwards.get(key)
        if found is None:
            found = _remember(self._forwards, key, self._lacking(name, _FORWARDERS, _to_get(topic)[1]))
        return found

    def forwards(self, name: str) -> bool:
        """Return whether there may be a topic of which an identity may pass on messages of others."""
        return self._decisions.may_somewhere(name, _FORWARDERS)

    def wanting(self, name: str, prefix: bytes) -> str:
        """Return the verb that an identity lacks to be sent anything of a prefix; empty if there may be something."""
        verbs, subject = _to_get(prefix)
        if subject != prefix:
            return self._lacking(name, verbs, subject)
        return "" if self._decisions.may_somewhere(name, verbs, _text(prefix)) else verbs[0]

    def wanted(self, name: str, filter: Filter) -> Filter:
        """Return the prefixes of a filter under which something may be sent; single topics are checked later."""
        return tuple([each for each in filter if not self.wanting(name, each)])

    def attaching(self, name: str, verb: str, store: bytes) -> bool:
        """Return whether neighbours let an identity take part in a data store with this verb."""
        return not self._lacking(name, {WRITE: _WRITERS, ATTACH_CLONE: _CLONES}.get(verb, _MASTERS), store)

    def why_not(self, name: str, verb: str, topic: bytes) -> str:
        return self._decisions.why_not(name, verb, _text(_to_get(topic)[1]))

    def refused(self, wanted: Filter) -> dict[bytes, tuple[str, str]]:
        """Return our prefixes of which nothing may be sent to us, each with the verb that we lack and the reason."""
        verbs = {each: self.wanting(self._own, each) for each in wanted} if self._own else {}
        return {each: (verb, self.why_not(self._own, verb, each)) for each, verb in verbs.items() if verb}

    def lets_forward(self, own: bytes) -> bool:
        """Return whether there may be a topic of which we may pass on messages of others; ``own`` is our id."""
        return self.forwards(self._own) if self._own else self.forwards_as(own)

    # -- of anybody, by endpoint id -------------------------------------------------------------------

    def forwards_as(self, endpoint: bytes) -> bool:
        """Return whether an endpoint may pass on messages of others on any topic."""
        name = self._names.get(endpoint)
        return name is None or self.forwards(name)

    def gets_as(self, endpoint: bytes, topic: bytes) -> bool:
        """Return whether messages of a topic may be sent to an endpoint."""
        name = self._names.get(endpoint)
        return name is None or not self.getting(name, topic)

    def administers_as(self, endpoint: bytes) -> bool:
        """Return whether an endpoint is one of an identity that may administer all topics."""
        name = self._names.get(endpoint)
        return name is not None and self._decisions.may_all(name, _ADMINISTRATORS, "")

    def wanted_as(self, endpoint: bytes, filter: Filter) -> Filter:
        """Return the prefixes of an endpoint's filter under which something may be sent."""
        name = self._names.get(endpoint)
        return filter if name is None else self.wanted(name, filter)

    def _lacking(self, name: str, verbs: Verbs, subject: bytes) -> str:
        return "" if self._decisions.may(name, verbs, _text(subject)) else verbs[0]


def _remember(table: dict[tuple[str, bytes], str], key: tuple[str, bytes], found: str) -> str:
    if len(table) >= REMEMBERED_MAX:
        table.clear()
    table[key] = found
    return found


def _text(subject: bytes) -> str:
    return subject.decode(errors="surrogateescape")


def _to_send(topic: bytes, payload: bytes) -> tuple[Verbs, bytes]:
    """Return the verbs needed to send a command, and the topic or data store to check them against."""
    if topic.endswith(CLONE_SUFFIX):
        return _MASTERS, topic.removesuffix(CLONE_SUFFIX)
    if topic.endswith(MASTER_SUFFIX):
        writes = payload[COMMAND_HEAD - 1 : COMMAND_HEAD] < bytes((_WRITES_BELOW,))
        return _WRITERS if writes else _CLONES, topic.removesuffix(MASTER_SUFFIX)
    return _PUBLISHERS, topic


def _to_get(topic: bytes) -> tuple[Verbs, bytes]:
    """Return the verbs needed to receive a topic whose kind is not known yet; a master listens to other masters."""
    if _STORES in topic:
        if topic.endswith(CLONE_SUFFIX):
            return _CLONES, topic.removesuffix(CLONE_SUFFIX)
        if topic.endswith(MASTER_SUFFIX):
            return _MASTERS, topic.removesuffix(MASTER_SUFFIX)
    return _SUBSCRIBERS, topic
