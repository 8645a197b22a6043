"""The keys of groups as one machine has them, its own and those that others hand on.

Versions only grow. Who hands something on need not be trusted: the authority has signed each line, and lines are only
ever added.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from chappe.permissions.in_force import USELESS_MAX
from chappe.permissions.text import Check
from chappe.sealing.chain import KeyChain, read_chain
from chappe.sealing.epochs import GroupKeys
from chappe.sealing.ring import CHANGE

ASKED_S: Final = 3.0  # so long who seals waits at first for a word on which keys others have
BEHIND_S: Final = 10.0  # so long such a word counts, if what it speaks of does not come; it is said every two seconds


class KeyShelf:
    """For one thread at a time.

    Args:
        check: Whether the authority has signed something.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._chains: dict[str, KeyChain] = {}
        self._useless: set[int] = set()  # hashes of what was handed on and is nothing: it will come again
        self._heard: dict[str, tuple[int, float]] = {}  # by group: which version somebody said last that he has, when

    def keys(self, group: str) -> GroupKeys | None:
        """The newest ones; None if there are none."""
        chain = self._chains.get(group)
        return None if chain is None else chain.keys

    def version(self, group: str) -> int:
        """The number of lines there have been; 0 if there are no keys."""
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
        """The file of a group of which there are keys."""
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
        """Take what somebody hands on; returns whether it is newer.

        Raises:
            ConfigError: It is no such thing, or does not follow what is here. The same again is told no more.
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
