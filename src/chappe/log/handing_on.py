"""Newer permissions and keys of groups travel: towers and forwarders say what they have, and members bring or fetch.

Towers and forwarders say every two seconds which versions they have (``V``). A member that has newer ones sends them
there, one that has older ones asks for them. So whatever is lost comes again, and nobody has to be believed.
Permissions (``P``) go to all when they change or somebody wants them. Of the keys of groups (``N``) what is new goes to
all, before the permissions, so that nobody waits for keys; what came before is sent to who asks, by a word of his
(``N`` and the word). Nothing of this is sent where there are no keys.

::

    V  permissions' version u64  [version u64 and name of a group]...
    P  [the file, or nothing: it is asked for]
    N  group  lines of its file                 ; brought
    N  group  version u64  word                 ; what is after this version is asked for
    N* group  lines of its file                 ; new
    N word  group  lines of its file            ; the answer
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from chappe.permissions.text import FILE_BYTES_MAX

VERSION: Final = b"V"
PERMISSIONS: Final = b"P"
GROUPS: Final = b"N"
NEWS: Final = GROUPS + b"*"
SAY_S: Final = 2.0  # between two words on the version
SEND_S: Final = 0.9  # between two of the same file, at least
WORD_BYTES: Final = 16
FRAME_BYTES_MAX: Final = FILE_BYTES_MAX + 1_024
ANSWERED_BYTES_MAX: Final = 16 << 20  # of keys in a second, to all who ask; the others ask again
_NUMBER: Final = struct.Struct(">Q")

Send = Callable[[list[bytes]], None]


class Groups(Protocol):
    def versions(self) -> Mapping[str, int]:
        """Return the versions of the groups that the permissions have; 0 where there are no keys."""

    def wanted(self, group: str, name: str) -> bool:
        """Return True if an identity is of a group, by the permissions."""

    def after(self, group: str, version: int) -> bytes:
        """Return the lines added since, to be handed on; empty if there are none."""

    def hear(self, group: str, version: int, now: float) -> None:
        """Note the version that a member which hands them on has."""


class Held(Protocol):
    """The permissions and keys of a member, which takes others if the authority has signed them and they are newer."""

    name: str

    @property
    def groups(self) -> Groups: ...

    @property
    def version(self) -> int:
        """The version of the permissions in force."""

    @property
    def raw(self) -> bytes:
        """The permissions in force, as the authority signed them."""

    def offer(self, raw: bytes) -> object: ...

    def offer_keys(self, group: str, raw: bytes) -> object:
        """Offer keys of a group that another member hands on."""


def is_handed_on(kind: bytes) -> bool:
    """Return True if a message is one of these, by its first frame."""
    return kind in (VERSION, PERMISSIONS) or kind[:1] == GROUPS


class PermissionsMember:
    """A member that hears towers or forwarders, and sends to them.

    Args:
        word: ``WORD_BYTES`` that nobody else has.
        all_groups: Whether it wants the keys of groups to which it does not belong, to hand them on.
    """

    def __init__(self, gate: Held, send: Send, word: bytes, *, all_groups: bool = False) -> None:
        self._gate = gate
        self._send = send
        self._all = all_groups
        self._sent_at = -math.inf
        self._asked_at: dict[str, float] = {}
        self._word = word
        groups = (GROUPS,) if all_groups else (NEWS, GROUPS + self._word)
        self.kinds = (VERSION, PERMISSIONS, *groups)

    def hear(self, frames: list[bytes], now: float) -> None:
        """Take a message of these kinds from a tower or forwarder."""
        if frames[0] == VERSION:
            self._compare(frames[1:], now)
        elif frames[0] == PERMISSIONS:
            if len(frames) == 2 and frames[1]:  # a forwarder hears what others ask its peers
                self._gate.offer(frames[1])
        elif len(frames) == 3:
            group = frames[1].decode(errors="replace")
            if self._all or self._gate.groups.wanted(group, self._gate.name):
                self._gate.offer_keys(group, frames[2])

    def _compare(self, said: Sequence[bytes], now: float) -> None:
        theirs = {each[_NUMBER.size :].decode(errors="replace"): _version(each) for each in said[1:]}
        for group, ours in self._gate.groups.versions().items():
            their = theirs.get(group, 0)
            self._gate.groups.hear(group, their, now)
            if their == ours or now < self._asked_at.get(group, -math.inf) + SEND_S:
                continue
            if ours > their:
                self._asked_at[group] = now
                self._send([GROUPS, group.encode(), self._gate.groups.after(group, their)])
            elif self._all or self._gate.groups.wanted(group, self._gate.name):
                self._asked_at[group] = now
                self._send([GROUPS, group.encode(), _NUMBER.pack(ours), self._word])
        version = _version(said[0]) if said else self._gate.version
        if version != self._gate.version and now >= self._sent_at + SEND_S:
            self._sent_at = now
            self._send([PERMISSIONS, self._gate.raw if version < self._gate.version else b""])


class Middle:
    """A tower or forwarder, which hands on what members bring to all of them."""

    def __init__(self, gate: Held, send: Send) -> None:
        self._gate = gate
        self._send = send
        self._wanted = True
        self._sent = -1  # the version that was sent last
        self._sent_at = -math.inf
        self._say_at = self._said_at = -math.inf
        self._said = gate.groups.versions()
        self._answered = 0  # bytes, since the last look
        self._answered_at = -math.inf

    def hear(self, frames: list[bytes], now: float) -> None:
        """Take permissions or keys that a member brings, or its question for them."""
        if frames[0] == GROUPS:
            group = frames[1].decode(errors="replace") if len(frames) > 1 else ""
            if len(frames) == 3:
                self._gate.offer_keys(group, frames[2])
            elif len(frames) == 4 and len(frames[3]) == WORD_BYTES:
                self._answer(group, _version(frames[2]), frames[3], now)
        elif len(frames) == 2 and frames[0] == PERMISSIONS:
            if frames[1]:
                self._gate.offer(frames[1])
            else:
                self._wanted = True
        self.look(now)

    def joined(self, now: float) -> None:
        self._wanted = True
        self._say_at = min(self._say_at, self._said_at + SEND_S)  # who seals waits for it
        self.look(now)

    def look(self, now: float) -> None:
        versions = self._gate.groups.versions()
        others = versions != self._said
        if others:
            for group, version in versions.items():
                if version > self._said.get(group, 0):
                    lines = self._gate.groups.after(group, self._said.get(group, 0))
                    self._send([NEWS, group.encode(), lines])
            self._said = versions
        news = self._gate.version != self._sent
        if news or (self._wanted and now >= self._sent_at + SEND_S):
            self._wanted, self._sent, self._sent_at = False, self._gate.version, now
            self._send([PERMISSIONS, self._gate.raw])
        if news or others or now >= self._say_at:
            self._said_at, self._say_at = now, now + SAY_S
            said = [_NUMBER.pack(version) + group.encode() for group, version in versions.items()]
            self._send([VERSION, _NUMBER.pack(self._gate.version), *said])

    def _answer(self, group: str, version: int, word: bytes, now: float) -> None:
        if now >= self._answered_at + 1.0:
            self._answered, self._answered_at = 0, now
        if self._answered < ANSWERED_BYTES_MAX and (lines := self._gate.groups.after(group, version)):
            self._answered += len(lines)
            self._send([GROUPS + word, group.encode(), lines])


def _version(raw: bytes) -> int:
    return int.from_bytes(raw[: _NUMBER.size])
