"""Sealed shared maps at their clients: servers get neither keys nor values nor properties.

Any thread may call. Files of keys are read again when they change.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from chappe.errors import Sealed
from chappe.runtime.map_rules import topic_of
from chappe.security import Keys
from chappe.system import time

if TYPE_CHECKING:
    from chappe.permissions.rules import Group
    from chappe.sealing.map_keys import KeyCipher
    from chappe.sealing.ring import Ring

KEPT_MAX: Final = 65_536  # values that were opened ...
KEPT_BYTES_MAX: Final = 32 << 20  # ... of so many bytes, which need not be opened again
_SIZE: Final = 4
NOTHING_LIKE_IT: Final = b"\0"  # what no sealed value is: expected where the copy here has another value


class MapSealing:
    """The keys and ciphers of one client. Its map is sealed as a whole if all topics below ``name`` are."""

    def __init__(self, keys: Keys, name: str) -> None:
        from chappe.sealing.messages import MessageOpener
        from chappe.storage.sealed_files import SealedGroups

        self._lock = threading.Lock()
        self._files = SealedGroups(keys)
        self._files.look(time.monotonic())
        self._name = name
        self._place = name.encode()
        self._held = self._files.held
        self._sealer = self._files.message_sealer()
        self._opener = MessageOpener()
        self._cipher: KeyCipher | None = None
        self._opened: dict[bytes, tuple[bytes, bytes]] = {}  # by key and value as they are sealed
        self._opened_bytes = 0
        self.group: Group | None = self._held.group(f"{name}/") if name else None
        if self.group is not None:
            self._check()

    @property
    def active(self) -> bool:
        return self.group is not None

    def check_plain(self, key: bytes) -> None:
        """Raise Sealed if a key is to be sealed, and the map is not."""
        with self._lock:
            self._files.look(time.monotonic())
            group = self._held.group(topic_of(self._name, key))
            if group is not None and self.group is None:
                text = key.decode("utf-8", "backslashreplace")
                raise Sealed(
                    f"key {text!r} is sealed for {group.name}, and nothing was sent: a map is sealed as a whole, by a "
                    "name of which all topics are sealed, when it is opened"
                )

    def key(self, key: bytes) -> bytes:
        """Seal a key, or a prefix of keys. Raises Sealed."""
        with self._lock:
            return self._keys().seal(key)

    def plain_key(self, sealed: bytes) -> bytes | None:
        """Open a key; None if no member of the group has written it. Raises Sealed."""
        with self._lock:
            return self._keys().open(sealed)

    def seal(self, sealed_key: bytes, body: bytes, properties: bytes) -> bytes:
        """Seal a value and its properties. Raises Sealed."""
        from chappe.sealing.messages import VALUE

        with self._lock:
            ring = self._check()
            assert ring.newest is not None
            text = len(properties).to_bytes(_SIZE) + properties + body
            return self._sealer.seal(ring.newest, VALUE, (self._place, sealed_key), text, time.time_ns() // 1000)

    def open(self, sealed_key: bytes, sealed: bytes) -> tuple[bytes, bytes]:
        """Open a value and its properties. Raises Sealed."""
        with self._lock:
            entry = sealed_key + b"\n" + sealed
            found = self._opened.get(entry)
            if found is None:
                found = self._open(sealed_key, sealed)
                if len(self._opened) >= KEPT_MAX or self._opened_bytes + len(entry) > KEPT_BYTES_MAX:
                    self._opened.clear()
                    self._opened_bytes = 0
                self._opened[entry] = found
                self._opened_bytes += 2 * len(entry)
            return found

    # -- inside, with the lock held -----------------------------------------------------------------------------------

    def _open(self, sealed_key: bytes, sealed: bytes) -> tuple[bytes, bytes]:
        from chappe.sealing.messages import VALUE, OpenedContent

        ring = self._ring()
        identities = self._held.permissions.identities
        outcome = self._opener.open(sealed, VALUE, (self._place, sealed_key), ring, identities)
        if not isinstance(outcome, OpenedContent):
            raise Sealed(f"a value of map {self._name!r} cannot be opened: {outcome.reason}")
        content = outcome.content
        end = _SIZE + int.from_bytes(content[:_SIZE])
        if not _SIZE <= end < len(content):
            raise Sealed(f"a value of map {self._name!r} is not what {outcome.frame.sender} should have sealed")
        return content[end:], content[_SIZE:end]

    def _keys(self) -> KeyCipher:
        if self._cipher is None:
            from chappe.sealing.map_keys import KeyCipher

            lasting = self._ring().lasting
            if lasting is None:
                raise Sealed(
                    f"map {self._name!r} is sealed, and {self._file} is older than sealed maps: `chappe keys rotate` "
                    "makes what they need"
                )
            self._cipher = KeyCipher(lasting, self._name)
        return self._cipher

    def _check(self) -> Ring:
        """Return the ring to seal with. Raises Sealed."""
        ring = self._ring()
        assert self.group is not None
        refusal = self._held.refusal(self.group)
        if refusal:
            raise Sealed(f"map {self._name!r} is sealed for {self.group.name}, and nothing was sent: {refusal}")
        return ring

    def _ring(self) -> Ring:
        self._files.look(time.monotonic())
        assert self.group is not None
        if not self._held.within(self.group):
            name = self._held.name
            raise Sealed(f"map {self._name!r} is sealed, and cannot be read: {name} is not of {self.group.name}")
        ring = self._held.ring(self.group.name)
        if ring is None:
            raise Sealed(f"map {self._name!r} is sealed, and {self._file} is not there, or not usable")
        return ring

    @property
    def _file(self) -> str:
        assert self.group is not None
        return str(self._held.where(self.group.name))
