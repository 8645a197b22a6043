"""The file of a group's keys: lines that the authority adds one after the other, and that everybody may read.

::

    {"group":"ward","authority":"X25519 public key","version":0,"digest":"..."}
    {"type":"epoch","number":1,"made":"2026-11-23T20:00:00Z","fresh":true,"salt":"...","keys":{...}} MEUC...
    {"type":"given","name":"nurse","keys":{"1":"..."}} MEQC...

Each line ends in the authority's signature of the digest of all lines so far, with the group and how many they are: its
version. So the last line tells whether all are there, as they were written; and who has the first thousand needs only
those behind, which travel in the same form: the first line says what went before. At the bound of the file the oldest
epochs go, up to the next fresh one; what was sealed in them can then no longer be opened with this file.

The keys of groups as one machine has them, its own and those that others hand on.

Versions only grow. Nobody needs to trust a member that hands lines on: the authority has signed each, and lines are
only ever added.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Final

import msgspec

from chappe.errors import ConfigError, UsageError
from chappe.permissions import text as permissions
from chappe.permissions.text import SIGNATURE_MAX, USELESS_MAX, VERSION_MAX, Check, check_name
from chappe.sealing.epochs import EPOCHS_MAX, Change, Epoch, GroupKeys, Key, Name
from chappe.sealing.primitives import KEY_BYTES, digest
from chappe.sealing.ring import CHANGE

FILE_BYTES_MAX: Final = 16 << 20
KEPT_BYTES_MAX: Final = 12 << 20  # the oldest epochs go beyond it
HANDED_BYTES_MAX: Final = permissions.FILE_BYTES_MAX  # at a time
HANDED_MAX: Final = 500  # lines that are handed on at a time: each has a signature to be looked at
CONTEXT: Final = b"chappe sealed group 2\n"  # before what is signed
FORMAT: Final = 1  # of a file whose first line does not begin with it: none does so far
_FORMAT: Final = re.compile(rb'\{"format":(\d{1,9})\b')
_HEAD_BYTES_MAX: Final = 1_024


class _ChainHead(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The first line: ``digest`` is that of the ``version`` lines which are not here."""

    group: Name
    authority: Key
    version: Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
    digest: Key


class KeyChain:
    """The lines of one group. Not for two threads at a time; what ``keys`` is never changes in itself."""

    def __init__(self, group: str, authority: bytes, version: int = 0, before: bytes = bytes(KEY_BYTES)) -> None:
        self.keys = GroupKeys(group, authority, version, ())
        self._first = version  # how many lines went before
        self._lines: list[bytes] = []
        self._fresh: list[int] = []  # for each line the number of the fresh epoch that it begins, or 0
        self._digests = [before]  # of what went before, and after each line
        self._size = 0

    @property
    def version(self) -> int:
        return self.keys.version

    def raw(self) -> bytes:
        return self._written(0, len(self._lines))

    def after(self, version: int) -> bytes:
        """Return the lines after a version, to be handed on; not all if they are many. Empty if there are none."""
        begin = end = max(version - self._first, 0)
        size = 0
        while end < min(len(self._lines), begin + HANDED_MAX):
            size += len(self._lines[end]) + 1
            if end > begin and size > HANDED_BYTES_MAX - _HEAD_BYTES_MAX:
                break
            end += 1
        return self._written(begin, end) if begin < end else b""

    def add(self, change: Change, sign: Callable[[bytes], bytes]) -> None:
        text = msgspec.json.encode(change)
        signature = sign(self._to_sign(self.version + 1, digest(self._digests[-1] + text)))
        self._take([text + b" " + b64encode(signature)], [change])

    def extend(self, raw: bytes, check: Check) -> bool:
        """Take what somebody hands on; returns whether there was anything new. Raises ConfigError: it is too large, not
        signed, malformed, or does not follow what is here.
        """
        if len(raw) > HANDED_BYTES_MAX:
            raise ConfigError(f"it is larger than {HANDED_BYTES_MAX} bytes")
        head, lines = _split(raw, self.keys.group)
        return self._extend(head, lines, check, all_signed=True)

    def _extend(self, head: _ChainHead, lines: Sequence[bytes], check: Check, *, all_signed: bool) -> bool:
        known = self.version - head.version
        if head.authority != self.keys.authority or known < 0:
            raise ConfigError("it does not follow what is here")
        if len(lines) <= known:
            return False
        digests = [head.digest]
        for line in lines:
            digests.append(digest(digests[-1] + _text(line)))
        if digests[known] != self._digests[-1]:
            raise ConfigError("it does not follow what is here")
        new = lines[known:]
        for at in range(len(new), 0, -1):  # the last one tells of all lines; the others are to be right as they go on
            if not check(_signature(new[at - 1]), self._to_sign(self.version + at, digests[known + at])):
                raise ConfigError("signature check failed")
            if not all_signed:
                break
        try:
            changes = [msgspec.json.decode(_text(line), type=Change) for line in new]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"it is malformed: {error}") from None
        self._take(new, changes)
        return True

    def _take(self, lines: Sequence[bytes], changes: Sequence[Change]) -> None:
        keys = self.keys.after(*changes)
        for line, change in zip(lines, changes, strict=True):
            self._lines.append(line)
            self._fresh.append(change.number if isinstance(change, Epoch) and change.fresh else 0)
            self._digests.append(digest(self._digests[-1] + _text(line)))
            self._size += len(line) + 1
        self.keys = self._bounded(keys)

    def _bounded(self, keys: GroupKeys) -> GroupKeys:
        """Leave out the oldest epochs beyond the bound; never the newest fresh one and those that follow it."""
        starts = [at for at, number in enumerate(self._fresh) if number]
        gone, size = 0, self._size
        for begin, end in pairwise(starts):
            if size <= KEPT_BYTES_MAX and len(self._lines) - gone <= EPOCHS_MAX:
                break
            size -= sum(len(line) + 1 for line in self._lines[begin:end])
            gone = end
        if not gone:
            return keys
        keys = keys.since(self._fresh[gone])
        for each in (self._lines, self._fresh, self._digests):
            del each[:gone]
        self._first, self._size = self._first + gone, size
        return keys

    def _written(self, begin: int, end: int) -> bytes:
        head = _ChainHead(self.keys.group, self.keys.authority, self._first + begin, self._digests[begin])
        return b"\n".join([msgspec.json.encode(head), *self._lines[begin:end], b""])

    def _to_sign(self, version: int, state: bytes) -> bytes:
        keys = self.keys
        return CONTEXT + keys.group.encode() + b"\n" + keys.authority + version.to_bytes(8) + state


def read_chain(raw: bytes, group: str, check: Check, *, handed: bool = False) -> KeyChain:
    """A whole file of this group, or one that was ``handed`` on, of which each signature is looked at. Raises
    ConfigError: the authority has not signed it so, or it is too large or malformed.
    """
    bytes_max = HANDED_BYTES_MAX if handed else FILE_BYTES_MAX
    if len(raw) > bytes_max:
        raise ConfigError(f"it is larger than {bytes_max} bytes")
    head, lines = _split(raw, group)
    made = KeyChain(group, head.authority, head.version, head.digest)
    if not made._extend(head, lines, check, all_signed=handed):
        raise ConfigError("it is malformed: it has no epoch")
    return made


def _split(raw: bytes, group: str) -> tuple[_ChainHead, list[bytes]]:
    """The first line and the others; only the former is parsed, and it is bounded."""
    first, _, rest = raw.partition(b"\n")
    newer = _FORMAT.match(first)
    if newer is not None and int(newer[1]) > FORMAT:
        raise ConfigError(f"its format is {int(newer[1])}, written by a newer chappe; this one knows {FORMAT}: upgrade")
    try:
        head = msgspec.json.decode(first[:_HEAD_BYTES_MAX], type=_ChainHead)
        check_name(head.group, "a group")
        if msgspec.json.encode(head) != first:
            raise UsageError("written in another way")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError):
        raise ConfigError("signature check failed: header missing") from None
    if head.group != group:
        raise ConfigError(f"it is of the group {head.group}, and not of {group}")
    if head.version > VERSION_MAX - EPOCHS_MAX * 2 or rest.count(b"\n") > EPOCHS_MAX * 2:
        raise ConfigError("it is malformed: it has too many lines")
    return head, [line for line in rest.split(b"\n") if line]


def _text(line: bytes) -> bytes:
    return line.rpartition(b" ")[0]


def _signature(line: bytes) -> bytes:
    written = line.rpartition(b" ")[2][:SIGNATURE_MAX]
    try:
        found = b64decode(written, validate=True)
    except binascii.Error:
        return b""  # which is nobody's
    return found if b64encode(found) == written else b""


ASKED_S: Final = 3.0  # so long who seals waits at first for a word on which keys others have
BEHIND_S: Final = 10.0  # so long such a word counts, if what it speaks of does not come; it is said every two seconds


class KeyShelf:
    """For one thread at a time. ``check``: whether the authority has signed something."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._chains: dict[str, KeyChain] = {}
        self._useless: set[int] = set()  # hashes of what was handed on and is nothing: it will come again
        self._heard: dict[str, tuple[int, float]] = {}  # by group: which version somebody said last that he has, when

    def keys(self, group: str) -> GroupKeys | None:
        chain = self._chains.get(group)
        return None if chain is None else chain.keys

    def version(self, group: str) -> int:
        chain = self._chains.get(group)
        return 0 if chain is None else chain.version

    def hear(self, group: str, version: int, now: float) -> None:
        """Somebody who hands keys on has said which version he has."""
        if group in self._chains:
            self._heard[group] = version, now

    def doubt(self, group: str, waited_s: float, now: float, today: datetime) -> str:
        """The reason not to seal with the keys that are here, though they can be used; empty if there is none.

        Others have newer ones; or these are so old that others may, and nobody has said anything yet.

        Args:
            waited_s: For how long who seals has waited for a word.
            now: Steady, in seconds.
            today: The time of day.
        """
        chain = self._chains.get(group)
        if chain is None or not chain.keys.epochs:
            return ""
        version, at = self._heard.get(group, (-1, now))
        if version > chain.version and now < at + BEHIND_S:
            return "is older than what others have, which has not been handed on yet, or has to be copied"
        if version < 0 and waited_s < ASKED_S and chain.keys.newest.made + CHANGE < today:
            return "may be old, and nobody has said yet which one he has"
        return ""

    def raw(self, group: str) -> bytes:
        return self._chains[group].raw()

    def after(self, group: str, version: int) -> bytes:
        """Return the lines added since a version, to be handed on; empty if there are none."""
        chain = self._chains.get(group)
        return b"" if chain is None else chain.after(version)

    def put(self, group: str, chain: KeyChain) -> bool:
        """Take a whole file that was read here; False, and nothing is changed, if it is older than the one here."""
        if chain.version < self.version(group):
            return False
        self._useless.clear()
        self._chains[group] = chain
        return True

    def offer(self, group: str, raw: bytes) -> bool:
        """Take what somebody hands on; returns whether it is newer. Raises ConfigError: it is no such thing, or does
        not follow what is here. The same again is told no more.
        """
        known = hash((group, raw))
        if known in self._useless:
            return False
        if len(self._useless) >= USELESS_MAX:
            self._useless.clear()
        self._useless.add(known)
        chain = self._chains.get(group)
        if chain is None:
            self._chains[group] = read_chain(raw, group, self._check, handed=True)
        elif not chain.extend(raw, self._check):
            return False
        self._useless.clear()  # what did not follow may follow now
        return True
