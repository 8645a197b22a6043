"""The permissions of an endpoint's identity, and of clients behind it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from chappe.data.topic import shown
from chappe.errors import NotPermitted, UsageError
from chappe.mesh.endpoint import EndpointCore
from chappe.mesh.rules import COMMAND_HEAD, MeshRules
from chappe.permissions.rules import ATTACH_CLONE, ATTACH_MASTER, PUBLISH, SUBSCRIBE, WRITE
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.mesh_rules import KeysWatch, RulesWatch
from chappe.security import Keys, permissions_file
from chappe.storage.key_files import watched_permissions
from chappe.system import time

if TYPE_CHECKING:
    from chappe.sealing.in_mesh import MeshSealing


def watch_rules(keys: Keys) -> RulesWatch:
    """Return the rules of an endpoint with this identity, read again as their files change.

    Raises:
        UsageError: There are no permissions, or they do not let it take part.
        ConfigError: The signature of the permissions is wrong, or they are malformed.
        ChappeError: The package cryptography or blake3 is missing.
    """
    from chappe.storage.sealed_files import watched_groups  # who has no identity needs no cryptography

    permissions = watched_permissions(keys.directory)
    made = RulesWatch(permissions, keys.name, KeysWatch(watched_groups(keys.directory), keys.name))
    why = made.rules.refusal(keys.name)
    if why:
        raise UsageError(f"{keys.place} cannot be used: {why}, by {permissions_file(keys.directory)}")
    return made


class Permitted:
    """The permissions of an identity, checked at an endpoint."""

    def __init__(self, name: str, core: EndpointCore) -> None:
        self.name = name
        self._core = core

    def subscribe(self, topics: Iterable[bytes]) -> None:
        """Raise NotPermitted unless it may have something of each of these."""
        rules = self._rules
        for topic in topics:
            verb = rules.wanting(self.name, topic)
            if verb:
                self._refuse(verb, topic)

    @property
    def _rules(self) -> MeshRules:
        found = self._core.router.rules
        assert found is not None
        return found

    @abstractmethod
    def _refuse(self, verb: str, topic: bytes) -> None: ...


class Own(Permitted):
    """The permissions of an endpoint's own identity, checked before messages leave: neighbours would refuse the rest.

    Each method raises NotPermitted. Call with the endpoint's lock, or where a moment earlier or later does not matter.
    """

    def __init__(self, keys: Keys, core: EndpointCore) -> None:
        super().__init__(keys.name, core)
        self._file = permissions_file(keys.directory)

    def publish(self, topics: Iterable[bytes], kind: int, payload: bytes = b"") -> None:
        rules = self._rules
        for topic in topics:
            verb = rules.sending(self.name, kind, topic, payload[:COMMAND_HEAD])
            if verb:
                self._refuse(verb, topic)

    def may_publish(self, topic: bytes, kind: int) -> bool:
        """True if it may publish data there."""
        return not self._rules.sending(self.name, kind, topic, b"")

    def attach_master(self, store: bytes) -> None:
        self._attach(store, ATTACH_MASTER)

    def attach_clone(self, store: bytes) -> None:
        self._attach(store, ATTACH_CLONE)

    def write(self, store: bytes) -> None:
        self._attach(store, WRITE)

    def _attach(self, store: bytes, verb: str) -> None:
        if not self._rules.attaching(self.name, verb, store):
            self._refuse(verb, store)

    def _refuse(self, verb: str, topic: bytes) -> None:
        why = self._rules.why_not(self.name, verb, topic)
        what = shown(topic.decode(errors="surrogateescape"))
        raise NotPermitted(f"{self.name} may not {verb} {what!r}: {why}; whoever signs {self._file} can allow it")


class Behind(Permitted):
    """The permissions of a client behind an endpoint, such as a web page: its own identity's, within the endpoint's.

    Refusals are counted among the endpoint's. Each method takes the endpoint's lock where it must.
    """

    def __init__(self, name: str, core: EndpointCore, lock: threading.RLock) -> None:
        super().__init__(name, core)
        self._lock = lock

    def refusal(self) -> str:
        """Return the reason for which it may no longer take part; empty if it may."""
        return self._rules.refusal(self.name)

    def publish(self, topic: bytes) -> None:
        rules = self._rules
        verb = rules.publishing(self.name, topic) or self._sealed(rules, topic, PUBLISH)
        if verb:
            self._refuse(verb, topic)

    def gets(self, topic: bytes) -> bool:
        """True if it may have messages of a topic; of a prefix it gets its share."""
        rules = self._rules
        return not (rules.getting(self.name, topic) or self._sealed(rules, topic, SUBSCRIBE))

    def _sealed(self, rules: MeshRules, topic: bytes, verb: str) -> str:
        """Return ``verb`` if the topic is sealed for a group without it: the endpoint opens only for itself."""
        group = rules.permissions.group(topic.decode(errors="surrogateescape")) if rules.permissions.sealed else None
        known = rules.permissions.identities.get(self.name)
        return "" if group is None or (known is not None and group.has(known)) else verb

    def _refuse(self, verb: str, topic: bytes) -> None:
        with self._lock:
            self._core.router.refusals.add(self.name, verb, 1, topic)
        rules, what = self._rules, shown(topic.decode(errors="surrogateescape"))
        group = rules.permissions.group(topic.decode(errors="surrogateescape"))
        allowed = not (rules.publishing(self.name, topic) if verb == PUBLISH else rules.wanting(self.name, topic))
        why = f"it is sealed for {group.name}" if allowed and group else rules.why_not(self.name, verb, topic)
        raise NotPermitted(f"{self.name} may not {verb} {what!r}: {why}")


def sealing_of(keys: Keys) -> MeshSealing:
    """Return the sealing of this identity; raises as ``watch_rules``."""
    from chappe.sealing.in_mesh import MeshSealing
    from chappe.storage.sealed_files import SealedGroups

    files = SealedGroups(keys)
    steady = lambda: time.monotonic()  # noqa: E731  # a test may change it meanwhile
    return MeshSealing(files.held, files.message_sealer(), files.look, steady, SYSTEM_CLOCK)
