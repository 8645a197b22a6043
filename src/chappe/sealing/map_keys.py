"""Keys of a sealed shared map: each part of a path for itself, so that what begins alike still does.

``/wards/7`` becomes ``/X/Y``, where X stands for ``wards`` and Y for ``7`` in ``wards``: AES-SIV with the name of the
map and all that goes before, in Base64 for URLs without padding. Empty parts stay empty. The key for it lasts as long
as the group does, as it has to; so who was a member once can read names of keys later, if a server lets it.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, TypeVar

from chappe.sealing.primitives import SteadyCipher

KEPT_MAX: Final = 65_536  # keys that need not be looked at again
V = TypeVar("V")


class KeyCipher:
    """Seals and opens the keys of the map ``name``; ``lasting`` is the group's secret that lasts."""

    def __init__(self, lasting: bytes, name: str) -> None:
        self._siv = SteadyCipher.of(lasting, b"chappe sealed map keys 1")
        self._name = name.encode()
        self._sealed: dict[bytes, bytes] = {}
        self._plain: dict[bytes, bytes | None] = {}

    def seal(self, key: bytes) -> bytes:
        """Return the sealed form of a key, or of how keys begin: the same each time."""
        found = self._sealed.get(key)
        if found is None:
            parts = key.split(b"/")
            found = b"/".join([self._seal(part, b"/".join(parts[:at])) for at, part in enumerate(parts)])
            _keep(self._sealed, key, found)
        return found

    def open(self, sealed: bytes) -> bytes | None:
        """The key; None if nobody has sealed it who has the secret."""
        if sealed not in self._plain:
            _keep(self._plain, sealed, self._open(sealed))
        return self._plain[sealed]

    def _seal(self, part: bytes, before: bytes) -> bytes:
        return urlsafe_b64encode(self._siv.seal(part, self._name, before)).rstrip(b"=") if part else b""

    def _open(self, sealed: bytes) -> bytes | None:
        plain: list[bytes] = []
        for each in sealed.split(b"/"):
            before = b"/".join(plain)
            part: bytes | None = b""
            if each:
                try:
                    part = self._siv.open(urlsafe_b64decode(each + b"=" * (-len(each) % 4)), self._name, before)
                except binascii.Error:
                    return None
            if part is None or self._seal(part, before) != each:  # Base64 can be written in other ways
                return None
            plain.append(part)
        return b"/".join(plain)


def _keep(kept: dict[bytes, V], key: bytes, value: V) -> None:
    if len(kept) >= KEPT_MAX:
        kept.clear()
    kept[key] = value
